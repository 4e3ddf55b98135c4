"""What the two services that run an engine share: settings and the life of a rank process."""
