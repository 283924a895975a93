"""Make the records of published throughput anew from configs/published-throughput.yaml: `make published`."""

from pathlib import Path

from fp8bench.scaling.published import write_all

if __name__ == "__main__":
    for path in write_all(Path(__file__).resolve().parents[1] / "results"):
        print(path)
