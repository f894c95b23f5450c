//! How a recording reaches the hub, whatever becomes of the way there.
