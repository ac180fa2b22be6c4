"""Counts the bytes of every network again and writes the table that ships with stackmark.

PYTHONPATH=src python scripts/write_traffic.py > src/stackmark/workloads/train/traffic.csv
"""

import csv
import sys
from itertools import product
from typing import Literal, get_args

from stackmark.workloads.train.impl.nets.moving import Device, Moved, count_bytes
from stackmark.workloads.train.zoo import MODELS

BITS: tuple[Literal[32, 16], ...] = (32, 16)


def main() -> None:
    table = csv.writer(sys.stdout, lineterminator="\n")
    table.writerow(["model", "mode", "device", "bits", *Moved._fields])
    devices: tuple[Device, ...] = get_args(Device)
    for model, training, device, bits in product(MODELS.values(), (True, False), devices, BITS):
        counted = count_bytes(model, training=training, device=device, bits=bits)
        table.writerow([model.name, "train" if training else "forward", device, bits, *counted])


if __name__ == "__main__":
    main()
