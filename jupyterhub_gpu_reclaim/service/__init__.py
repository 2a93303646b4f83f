"""The Hub program: policy, orchestrator, API and pages."""
