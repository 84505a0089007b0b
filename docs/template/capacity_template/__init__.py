"""Plug-ins of `capacity`: a router, a policy, a GPU profile, a model, a trace reader and a verb."""
