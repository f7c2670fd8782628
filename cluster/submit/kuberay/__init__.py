"""Kubernetes with KubeRay: a manifest of a RayJob, handed to kubectl."""
