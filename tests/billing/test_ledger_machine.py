"""Any order of calls, credits, changes, midnights, full disks and crashes: the books stay right, to the nano-USD."""

from hypothesis import settings

from tests.support.ledger_machine import LedgerMachine

TestLedger = LedgerMachine.TestCase
TestLedger.settings = settings(stateful_step_count=50)
