#!/usr/bin/env bash
# Several nodes by hand: call it on each, with its number and the address of node 0, and the same flags everywhere.
#
#   node 0:  NODES=2 NODE=0 MASTER=10.0.0.1 bash torchrun.sh --instance p5 --session monday
#   node 1:  NODES=2 NODE=1 MASTER=10.0.0.1 bash torchrun.sh --instance p5 --session monday
#
# Node 0 keeps the records, in its results folder or where --results-dir says. What was cut short is resumed by the same
# call. The flags are those of `fp8bench run`.
#
#   GPUS   of a node [all that nvidia-smi lists]
#   PORT   of the rendezvous, free on node 0 and reachable from the others [29500]
set -euo pipefail

NODES=${NODES:?"how many nodes there are"}
NODE=${NODE:?"the number of this node, from 0"}
MASTER=${MASTER:?"the address of node 0, as the others reach it"}
GPUS=${GPUS:-$(nvidia-smi --list-gpus | wc -l)}
PORT=${PORT:-29500}

exec torchrun --nnodes "$NODES" --node-rank "$NODE" --nproc-per-node "$GPUS" \
    --master-addr "$MASTER" --master-port "$PORT" \
    -m fp8bench run "$@"
