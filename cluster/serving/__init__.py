"""Ray Serve around the evaluator: computes any point of any landscape on demand, by REST and gRPC."""
