"""Where Transformer Engine has an fp8 backend of dot-product attention for training (`fp8_dpa` of its recipes).

According to its sources, version 2.20 (get_attention_backend and nvte_get_fused_attn_backend): FlashAttention does not
train in fp8, and the unfused attention emulates fp8 only if a test requests it, so cuDNN's fused attention is the only
backend. It trains heads of 128 on compute capability 9, and heads of up to 128 in multiples of 16 on 10. Of the recipes
other than delayed scaling it supports current and mxfp8, from 10 on. It does not support 12.0.
"""

HEAD_DIM_OF_9 = 128
STEP = 16


def refusal(recipe: str, head_dim: int | None, capability: tuple[int, int] | None) -> str | None:
    """Return why there is no backend, as the end of a sentence; None if no reason is known.

    recipe: its name without fields. head_dim: width of a head; capability: of the GPU; None if unknown.
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
