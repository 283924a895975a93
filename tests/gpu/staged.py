"""Lets ranks without a GPU of their own share one: NCCL refuses two ranks on one GPU, and gloo crashes when it gathers
GPU tensors. This process group copies them to the host, has gloo do the work there, and copies the results back.
Kernels, sharding and proof are those of two GPUs; only the transport is slower, and no CUDA graph can hold it.
"""

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _create_work_from_future
from torch.futures import Future

NAME = "staged"


def done(result):
    future = Future()
    future.set_result(result)
    return _create_work_from_future(future)


def on_host(tensor):
    """Return the bytes of a tensor on the host: gloo has no fp8."""
    return tensor.detach().contiguous().cpu().view(torch.uint8)


class Staged(dist.ProcessGroup):
    def __init__(self, store, rank, size, timeout):
        super().__init__(rank, size)
        self.gloo = dist.ProcessGroupGloo(store, rank, size, timeout)

    def getBackendName(self):
        return NAME

    @property
    def group_name(self):
        return dist.distributed_c10d._world.pg_names[self]

    def allreduce(self, tensors, opts=None):
        op = opts.reduceOp if opts is not None else dist.ReduceOp.SUM
        for tensor in tensors:
            tensor.copy_(self._reduced(tensor, op))
        return done(tensors)

    def _reduced(self, tensor, op):
        mean = op == dist.ReduceOp.AVG
        # Sums of 16-bit floats in float32, as NCCL's are at least.
        staged = tensor.detach().cpu()
        staged = staged.float() if staged.dtype in (torch.bfloat16, torch.float16) else staged.clone()
        options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp.SUM if mean else op
        self.gloo.allreduce([staged], options).wait()
        return staged / self.size() if mean else staged

    def _gathered(self, tensor):
        mine = on_host(tensor)
        found = [torch.empty_like(mine) for _ in range(self.size())]
        self.gloo.allgather([found], [mine]).wait()
        return [one.view(tensor.dtype).view(tensor.shape) for one in found]

    def allgather(self, outputs, inputs, opts=None):
        for places, tensor in zip(outputs, inputs, strict=True):
            for place, found in zip(places, self._gathered(tensor), strict=True):
                place.copy_(found.view(place.shape))
        return done(outputs)

    def _allgather_base(self, output, tensor, opts=None):
        output.copy_(torch.cat([found.flatten() for found in self._gathered(tensor)]).view(output.shape))
        return done([output])

    def allgather_into_tensor_coalesced(self, outputs, inputs, opts=None):
        for output, tensor in zip(outputs, inputs, strict=True):
            self._allgather_base(output, tensor)
        return done(outputs)

    def _reduce_scatter_base(self, output, tensor, opts=None):
        op = opts.reduceOp if opts is not None else dist.ReduceOp.SUM
        output.copy_(self._reduced(tensor, op).flatten().chunk(self.size())[self.rank()].view(output.shape))
        return done([output])

    def reduce_scatter_tensor_coalesced(self, outputs, inputs, opts=None):
        for output, tensor in zip(outputs, inputs, strict=True):
            self._reduce_scatter_base(output, tensor, opts)
        return done(outputs)

    def broadcast(self, tensors, opts=None):
        root = opts.rootRank if opts is not None else 0
        for tensor in tensors:
            tensor.copy_(self._gathered(tensor)[root])
        return done(tensors)

    def scatter(self, outputs, inputs, opts):
        [output] = outputs
        mine = on_host(output)
        self.gloo.scatter([mine], [list(map(on_host, tensors)) for tensors in inputs], opts).wait()
        output.copy_(mine.view(output.dtype).view(output.shape))
        return done(outputs)

    def barrier(self, opts=None):
        self.gloo.barrier().wait()
        return done(None)

    # What these are called from torch 2.15 on.
    all_gather_single = _allgather_base
    all_gather_single_coalesced = allgather_into_tensor_coalesced
    reduce_scatter_single = _reduce_scatter_base
    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced


dist.Backend.register_backend(NAME, Staged, devices=["cpu", "cuda"])
