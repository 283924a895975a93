"""Keeps secrets out of everything that is written or shown: a record is meant to be shared, and a library's message in
it may quote the address of a cache with its password. Of the environment's variables, only those that change measured
numbers are named, each with a value that cannot be a secret. The values of variables whose names suggest one, and of
such parameters of an address, and what is between its `://` and `@`, are removed from any text, and by `fit` from all
texts of a record or a report.
"""

import os
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel

from fp8bench.schema.errors import inert

HIDDEN = "***"

SECRET_NAME = "TOKEN|SECRET|PASSW|PASSPHRASE|KEY|CREDENTIAL|AUTH(?!OR)|SESSION|COOKIE|PRIVATE"
_NO_SECRET = r"^(XDG_|DESKTOP_SESSION$)"  # of a desktop: the kind and name of its session
SHORTEST_SECRET = 6
_USERINFO = r"(?<=://)[^\s\"'<>]+@"
_PARAMETER = rf"(?i)(?<=[?&])([\w.-]*(?:SIG|{SECRET_NAME})[\w.-]*=)[^\s&\"'<>]+"

UUID = r"\b(?:GPU-|MIG-)?[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}\b"

FAMILIES = "NCCL_|NVTE_|TORCH|PYTORCH_|CUBLAS|OMP_|MKL_|GLOO_|CUDA_"
"""Variables that the libraries under a run read. All that are set are named, except those that match `PLACES`."""

PLACES = "_(HOME|ROOT|PATH|VERSION|BIN|INC|LIB)$"
"""Paths of installations. The versions found there are recorded instead. The path of a cache is a setting."""

TOLD = frozenset(
    """
    CUBLASLT_WORKSPACE_SIZE CUBLAS_WORKSPACE_CONFIG CUDA_DEVICE_MAX_CONNECTIONS CUDA_LAUNCH_BLOCKING CUDA_MODULE_LOADING
    CUDA_VISIBLE_DEVICES GLOO_DEVICE_TRANSPORT GLOO_SOCKET_IFNAME MKL_NUM_THREADS
    NCCL_ALGO NCCL_BUFFSIZE NCCL_COLLNET_ENABLE NCCL_CROSS_NIC NCCL_CUMEM_ENABLE NCCL_DEBUG NCCL_DEBUG_SUBSYS
    NCCL_IB_HCA NCCL_MAX_CTAS NCCL_MIN_CTAS NCCL_NET NCCL_NET_GDR_LEVEL NCCL_NET_PLUGIN NCCL_NVLS_ENABLE NCCL_P2P_LEVEL
    NCCL_PROTO NCCL_PXN_DISABLE NCCL_SHM_DISABLE NCCL_SOCKET_FAMILY NCCL_SOCKET_IFNAME NCCL_TUNER_PLUGIN
    NVTE_BIAS_GELU_NVFUSION NVTE_DEBUG_LEVEL NVTE_FLASH_ATTN NVTE_FRAMEWORK NVTE_FUSED_ATTN NVTE_FUSED_ATTN_BACKEND
    NVTE_UNFUSED_ATTN OMP_NUM_THREADS OMP_PLACES OMP_PROC_BIND OMP_SCHEDULE OMP_WAIT_POLICY
    PYTORCH_ALLOC_CONF PYTORCH_CUDA_ALLOC_CONF PYTORCH_NO_CUDA_MEMORY_CACHING
    TORCHINDUCTOR_COMPILE_THREADS TORCHINDUCTOR_MAX_AUTOTUNE_GEMM_BACKENDS TORCHINDUCTOR_MAX_AUTOTUNE_CONV_BACKENDS
    TORCHINDUCTOR_MAX_AUTOTUNE_GEMM_SEARCH_SPACE TORCH_CUDA_ARCH_LIST TORCH_DISTRIBUTED_DEBUG TORCH_LOGS
    """.split()
)
"""Settings whose values are words and are shown. The value of any other variable of these families is shown only if it
is a number or a switch.
"""

_NUMBER_OR_SWITCH = r"[+-]?\d{1,12}(\.\d{1,6})?[KMG]?|on|off|true|false|yes|no|none|auto"
_WORDS = r"[\w.,:;=+^\[\]| -]{0,120}"

SET, A_PATH = "(set)", "(a path)"
"""Stand for a value that may be private, and for a path: that it is set may matter, but its place is private."""

LONGEST, _BEGINNING, _END = 4000, 3000, 800  # of a longer text, the characters kept of its beginning and its end


def settings_in(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that may change measured numbers, by name, with what may be shown of each value."""
    names = sorted(name for name in environ if re.match(FAMILIES, name) and not re.search(PLACES, name))
    return {inert(name): shown_variable(name, environ[name]) for name in names}


def shown_variable(name: str, value: str) -> str:
    """Return what a reader may see of a value. A variable of these families should not hold a secret, but one has."""
    if re.search(SECRET_NAME, name, re.IGNORECASE):
        return SET
    if re.fullmatch(_NUMBER_OR_SWITCH, value, re.IGNORECASE):
        return value
    if Path(value).is_absolute():
        return A_PATH
    told = re.sub(UUID, HIDDEN, value)
    return told if name in TOLD and re.fullmatch(_WORDS, told.replace(HIDDEN, "")) else SET


def secrets_of(environ: Mapping[str, str]) -> frozenset[str]:
    """Return the values of variables whose names suggest a secret, and the passwords in addresses of all variables."""
    suspect = {name for name in environ if re.search(SECRET_NAME, name, re.IGNORECASE)}
    named = {environ[name] for name in suspect if not re.search(_NO_SECRET, name)}
    userinfo = {found[:-1] for value in environ.values() for found in re.findall(_USERINFO, value)}
    passwords = {text.partition(":")[2] for text in userinfo}
    return frozenset(text for text in named | userinfo | passwords if len(text) >= SHORTEST_SECRET)


def without(text: str, secrets: Iterable[str]) -> str:
    """Return the text without these secrets, and without user, password and secret parameters of addresses in it."""
    if "://" in text:
        text = re.sub(_PARAMETER, rf"\1{HIDDEN}", re.sub(_USERINFO, f"{HIDDEN}@", text))
    for secret in sorted(secrets, key=len, reverse=True):
        if secret in text:
            text = text.replace(secret, HIDDEN)
    return text


def shortened(text: str, longest: int = LONGEST) -> str:
    """Return the beginning and the end of a long text, in proportion, with the number of characters omitted between."""
    if len(text) <= longest:
        return text
    begin, end = longest * _BEGINNING // LONGEST, longest * _END // LONGEST
    return f"{text[:begin]} [... {len(text) - begin - end} characters ...] {text[-end:]}"


ModelT = TypeVar("ModelT", bound=BaseModel)

IDENTITY = frozenset(
    "schema_version kind run_id status cause source instance session config fingerprint created_utc method_version "
    "machine".split()
)
FACTS = frozenset("mode workload device_name cpu driver python versions unit name category".split())
"""Fields that tell what a record is of: a word in them stays even if somebody uses it as a password."""

LOGS = frozenset({"log", "traceback"})  # fields whose text has lines

LONGEST_LOG = 1 << 20  # characters; of a longer log the beginning and the end are kept


def fit(model: ModelT, environ: Mapping[str, str] = os.environ) -> ModelT:
    """Return a record or a report as it may be written; the same object if nothing had to be changed."""
    found: ModelT = _fit(model, secrets_of(environ), IDENTITY)
    return model if found == model else found


def fit_log(text: str, secrets: Collection[str] | None = None) -> str:
    """Return a log as it may be written, line by line. secrets: None for those of this process's environment."""
    secrets = secrets_of(os.environ) if secrets is None else secrets
    return "\n".join(map(inert, shortened(without(text, secrets), LONGEST_LOG).split("\n")))


def _fit(value: Any, secrets: Collection[str], omitted: Collection[str] = ()) -> Any:
    if isinstance(value, str):
        return inert(shortened(without(value, secrets)))
    if isinstance(value, BaseModel):
        update = {}
        for name, part in vars(value).items():
            if name in LOGS and isinstance(part, str):
                update[name] = fit_log(part, secrets)
            elif name not in omitted:
                update[name] = _fit(part, () if name in FACTS else secrets)
        return value.model_copy(update=update)
    if isinstance(value, dict):
        return {_fit(name, secrets): _fit(part, secrets) for name, part in value.items()}
    # Thousands of samples hold no text.
    if isinstance(value, list | tuple) and value and not isinstance(value[0], float | int):
        return type(value)(_fit(part, secrets) for part in value)
    return value
