"""Two traces in, a result out: compared, composed, and how small an error would have been found."""
