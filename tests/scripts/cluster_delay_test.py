"""scripts/cluster on a kernel with netem: delay and loss."""

import re
import unittest

from cluster_test import HAS_IPROUTE, ROOT, Case, cluster, up_or_skip


@unittest.skipUnless(ROOT and HAS_IPROUTE, "needs root and iproute2")
class Impaired(Case):
    def setUp(self) -> None:
        self.addCleanup(cluster, "down")

    def test_delay_applies_in_each_direction(self) -> None:
        done = up_or_skip(2, "--rate", "100mbit", "--delay", "20ms")
        self.assertIn("delay 20ms", done.stdout)
        self.send(1)  # resolves the addresses
        seconds, _ = self.send(1)
        self.assertGreater(seconds, 0.95 * 2 * 0.020)
        self.assertLess(seconds, 0.5)

    def test_loss_drops_a_share_of_packets(self) -> None:
        up_or_skip(2, "--rate", "100mbit", "--loss", "10%")
        self.send(1_000_000)  # about 700 packets
        dropped = re.findall(r"dropped=(\d+)", cluster("counters").stdout)
        self.assertGreater(int(dropped[0]), 20)
        self.assertLess(int(dropped[0]), 200)


if __name__ == "__main__":
    unittest.main()
