"""What a kernel with a wrong backward pass does."""


def with_gradient(x, change):
    """`x`, whose gradient goes back as `change` makes it."""
    y = x.clone()
    if y.requires_grad:
        y.register_hook(change)
    return y
