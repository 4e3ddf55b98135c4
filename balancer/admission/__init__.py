"""Who may run now, who waits, who is refused. Pure: calls and `now` in, verdicts out."""

from balancer.admission.admission import Admission, AdmissionStatistics, Verdict

__all__ = ["Admission", "AdmissionStatistics", "Verdict"]
