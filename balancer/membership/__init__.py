"""Who could serve: members, what is known of them, and the columns that decisions read. Pure."""

from balancer.membership.members import ExclusionCause, Load, Member, MemberView, Role
from balancer.membership.membership import Membership

__all__ = ["ExclusionCause", "Load", "Member", "MemberView", "Membership", "Role"]
