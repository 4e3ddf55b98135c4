"""A cluster on virtual time: the real balancer objects, engines replaced by a cost model."""
