"""The observables at points of weight space: θ(α, β) = θ₀ + α·d₁ + β·d₂."""
