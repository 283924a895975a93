"""Runs on several nodes through torchrun, with all modes and rounds in one call: `torchrun --nnodes N --nproc-per-node
G -m fp8bench run ...`.

Each mode of each round needs fresh processes. So the process of local rank 0 becomes its node's agent, which starts the
ranks of one run after the other, as a run on one machine does; the other local ranks wait for it (`waiting`). The agent
of node 0 leads: it decides what runs, gathers the reports, keeps the records and prints.

    place      where torchrun has put this process
    waiting    the other local ranks of a node
    store      torchrun's TCPStore: keys that every node can read, and signs of life
    messages   what nodes tell each other, what may differ between them, and what is refused
    agent      from the first message between the nodes to the last
    executor   the runs between them

On one node there is no other agent to talk to: its agent is a run like any other.
"""
