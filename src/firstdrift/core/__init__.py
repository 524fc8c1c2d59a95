"""The data: sites, records, traces, dtypes, strict JSON, causal order; and files that stay as they were."""
