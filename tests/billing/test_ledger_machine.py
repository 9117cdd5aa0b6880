"""Any order of calls, credits, changes, midnights, full disks and crashes: the books stay right, to the nano-USD."""

import pytest
from hypothesis import HealthCheck, settings

from tests.support.ledger_machine import LedgerMachine

# On a busy machine the histories take longer than 60 s.
TestLedger = pytest.mark.timeout(400)(LedgerMachine.TestCase)
TestLedger.settings = settings(stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck))
