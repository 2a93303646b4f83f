"""The Hub's service: policies, control plane, API and pages."""
