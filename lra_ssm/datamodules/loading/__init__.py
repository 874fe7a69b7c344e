"""From a prepared folder to the batches of a model: order, padding, resumption."""
