"""Where Transformer Engine has a backend of dot-product attention in fp8 for training (`fp8_dpa` of its recipes).

By its sources, version 2.20 (get_attention_backend and nvte_get_fused_attn_backend): FlashAttention takes no fp8 in
training, and its unfused attention emulates it only where a test requests that, so cuDNN's fused attention is all there
is. That trains heads of 128 on compute capability 9, heads of up to 128 in multiples of 16 on 10; of scales that are
not delayed it takes current and mxfp8 ones from 10 on; 12.0 has none.
"""

HEAD_DIM_OF_9 = 128
STEP = 16


def refusal(recipe: str, head_dim: int | None, capability: tuple[int, int] | None) -> str | None:
    """Why there is no backend, for the end of a sentence; None: nothing that is known speaks against one.

    recipe: without its fields. head_dim: width of a head; capability: of the GPU; None: unknown.
    """
    if head_dim is not None and (head_dim % STEP or head_dim > HEAD_DIM_OF_9):
        return f"heads are {head_dim} wide, and it takes multiples of {STEP} up to {HEAD_DIM_OF_9}"
    if capability is None:
        return None
    of = f"on compute capability {capability[0]}.{capability[1]}"
    if capability < (9, 0) or capability == (12, 0):
        return f"there is none {of}"
    if capability >= (10, 0):
        return None
    if recipe != "delayed":
        return f"{of} there is one for delayed scaling only, and this is {recipe}"
    if head_dim is not None and head_dim != HEAD_DIM_OF_9:
        return f"{of} it trains heads of {HEAD_DIM_OF_9}, and these are {head_dim} wide"
    return None
