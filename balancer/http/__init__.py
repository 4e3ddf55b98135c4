"""The HTTP face of the balancer: a subset of the OpenAI API, and pages for operators."""
