"""cuDNN's version as one number, decoded."""


def decoded(cudnn: int) -> str:
    """91900 is 9.19.0; before cuDNN 9 it was 8902 for 8.9.2."""
    base = 10_000 if cudnn >= 90_000 else 1_000
    return f"{cudnn // base}.{cudnn % base // 100}.{cudnn % 100}"
