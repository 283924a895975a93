"""A catalogue on disk in gpuhunt's own format, written by gpuhunt."""

from zipfile import ZipFile

from gpuhunt import AcceleratorVendor, CatalogItem
from gpuhunt._internal import storage


def item(provider, name, location, price, gpus=8, gpu="H100", spot=False, flags=()):
    """One offer. price: USD per hour of the whole instance."""
    return CatalogItem(
        provider=provider,
        instance_name=name,
        location=location,
        price=price,
        cpu=192,
        memory=2048.0,
        gpu_count=gpus,
        gpu_name=gpu,
        gpu_memory=80.0,
        spot=spot,
        disk_size=None,
        gpu_vendor=AcceleratorVendor.NVIDIA,
        flags=list(flags),
    )


AWS = (
    item("aws", "p5.48xlarge", "eu-west-1", 40.0),
    item("aws", "p5.48xlarge", "us-east-1", 50.0),
    item("aws", "p5.48xlarge", "us-east-1", 15.0, spot=True),
    item("aws", "p5.4xlarge", "us-east-1", 6.5, gpus=1),
    item("aws", "p5.4xlarge", "us-west-2", 6.6, gpus=2),
    item("aws", "g4dn.xlarge", "us-east-1", 0.5, gpus=1, gpu="T4"),
)
GCP = (
    item("gcp", "a3-highgpu-8g", "us-central1-a", 88.0),
    item("gcp", "a3-highgpu-8g", "us-central1-b", 87.0),
    item("gcp", "a3-ultragpu-8g", "us-central1-a", 30.0, gpu="H200", flags=["gcp-dws-calendar-mode"]),
)
RUNPOD = (
    item("runpod", "NVIDIA H100 80GB HBM3", "CA", 2.6, gpus=1),
    item("runpod", "NVIDIA H100 PCIe", "CA", 2.0, gpus=1),
)
NEBIUS = (item("nebius", "gpu-h200-sxm 8gpu-128vcpu-1600gb", "eu-north1", 28.0, gpu="H200"),)


def folder_of(path, **items):
    """For GPUHUNT_CATALOG_DIR."""
    path.mkdir(exist_ok=True)
    for provider, offers in items.items():
        storage.dump(offers, str(path / f"{provider}.csv"))
    return path


def published(path, version, **items):
    """For GPUHUNT_CATALOG_URL: as gpuhunt publishes it, under a file: address."""
    for provider, offers in items.items():
        place = path / provider / version
        place.mkdir(parents=True)
        (path / provider / "version").write_text(version + "\n")
        folder_of(place, **{provider: offers})
        with ZipFile(place / "catalog.zip", "w") as archive:
            archive.write(place / f"{provider}.csv", f"{provider}.csv")
    return path.as_uri()
