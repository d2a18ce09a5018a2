"""The fleet for Kubernetes: from fleet.yaml to manifests. Pure but for ``target.py``."""
