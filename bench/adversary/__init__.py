"""An adversary that does not know how the judge decides: random networks, legal rewrites, wrong changes, forms.

The truth of every case comes from float64 runs and from how the case was made. In the order of the work:

- `operations/`, `optimizers`: what can be computed, the legal ways to do so, and wrong variants;
- `kinds`, `network`: random networks, and how PyTorch records them as the reference;
- `running`: a run in any legal way, free or from another run's tensors, right or wrong;
- `truth`: noise from legal rewrites, and the size of an error in units of it;
- `changes`, `forms`: what goes wrong, and what of a run is written down;
- `cases`, `crowd`, `tally`: a case judged by `fd.diff`, many of them by several processes, and the counts.
"""
