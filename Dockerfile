# fp8bench beside the torch and the Transformer Engine of NVIDIA's container, which it does not replace. How it resolves is
# tested against stand-ins of such versions (tests/test_install.py); the image itself was not built by those who wrote this.
#
#   docker build -t fp8bench .
#   docker run --rm --gpus all --ipc=host -v "$PWD/results:/fp8bench/results" fp8bench run
FROM nvcr.io/nvidia/pytorch:26.05-py3

COPY . /opt/fp8bench
RUN bash /opt/fp8bench/install/beside-torch.sh && python3 -c "import fp8bench, torch, transformer_engine.pytorch"

WORKDIR /fp8bench
ENTRYPOINT ["fp8bench"]
CMD ["--help"]
