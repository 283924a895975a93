#!/usr/bin/env bash
# Several nodes by hand: call this script on each node, with the node's number, the address of node 0, and the same flags.
#
#   node 0:  NODES=2 NODE=0 MASTER=10.0.0.1 bash torchrun.sh --instance p5 --session monday
#   node 1:  NODES=2 NODE=1 MASTER=10.0.0.1 bash torchrun.sh --instance p5 --session monday
#
# Node 0 writes the records to its results folder or to --results-dir. The same call resumes an interrupted session.
# The flags are those of `fp8bench run`.
#
#   GPUS   GPUs per node [all that nvidia-smi lists]
#   PORT   port of the rendezvous, free on node 0 and reachable from the others [29500]
set -euo pipefail

NODES=${NODES:?"how many nodes there are"}
NODE=${NODE:?"the number of this node, from 0"}
MASTER=${MASTER:?"the address of node 0, as the others reach it"}
GPUS=${GPUS:-$(nvidia-smi --list-gpus | wc -l)}
PORT=${PORT:-29500}

exec torchrun --nnodes "$NODES" --node-rank "$NODE" --nproc-per-node "$GPUS" \
    --master-addr "$MASTER" --master-port "$PORT" \
    -m fp8bench run "$@"
