"""Ray Serve around the evaluator: any point of any landscape on demand, by REST and gRPC."""
