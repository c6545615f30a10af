//! What the background does, and by when. Not with the other tests in one process, since those leave it no processor.

mod full_disk;
mod idle;
mod kept_space;
