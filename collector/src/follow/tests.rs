//! Following what is served, however the connection breaks.
