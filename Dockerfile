# fp8bench next to the torch and the Transformer Engine of NVIDIA's container, which it does not replace. Tests check how pip
# resolves it, with stand-ins for such versions (tests/test_install.py); the image itself has not been built by the authors.
#
#   docker build -t fp8bench .
#   docker run --rm --gpus all --ipc=host -v "$PWD/results:/fp8bench/results" fp8bench run
FROM nvcr.io/nvidia/pytorch:26.05-py3

COPY . /opt/fp8bench
RUN bash /opt/fp8bench/install/beside-torch.sh '/opt/fp8bench[llm,remote]' && python3 -c "import fp8bench, torch, transformer_engine.pytorch"

WORKDIR /fp8bench
ENTRYPOINT ["fp8bench"]
CMD ["--help"]
