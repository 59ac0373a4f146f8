//! The registry of libraries. Core knows none; a library crate submits one entry.
//!
//! Linking the crate is enough:
//!
//! ```text
//! inventory::submit! {
//!     LibraryEntry {
//!         id: ID,
//!         name: "cuBLAS",
//!         operations: &[Gemm::ID, Axpy::ID],
//!         spawn,
//!         host: Some(host::new),
//!         cuda: Some(cuda::new),
//!     }
//! }
//! ```

use atomr_core::actor::Context;

use crate::device::{ContextActor, Copy, Device, Fill, KernelChildren};
use crate::error::Result;
use crate::executor::{CudaLibrary, CudaSetup, HostLibrary, HostSetup};
use crate::graph::GraphLaunch;
use crate::operation::{LibraryId, Operation};

pub use inventory;

/// Spawns a library's actor under a context and registers it in the children.
pub type SpawnLibrary = fn(&mut Context<ContextActor>, &Device, &KernelChildren) -> Result<()>;
/// Makes the host half. Called once for each stream.
pub type MakeHostLibrary = fn(&HostSetup) -> Result<Box<dyn HostLibrary>>;
/// Makes the CUDA half; fails with a typed error where the shared library is missing. Called on
/// the worker's enqueue thread with the context current.
pub type MakeCudaLibrary = fn(&CudaSetup) -> Result<Box<dyn CudaLibrary>>;

/// What a library crate registers.
pub struct LibraryEntry {
    /// The library's number and bit.
    pub id: LibraryId,
    /// The library's name as its vendor writes it.
    pub name: &'static str,
    /// Number and name of each operation: [`Operation::ID`]. Errors name
    /// operations by this table.
    pub operations: &'static [(u16, &'static str)],
    /// Spawns the library's actor.
    pub spawn: SpawnLibrary,
    /// Makes the host half; `None` where there is none.
    pub host: Option<MakeHostLibrary>,
    /// Makes the CUDA half; `None` where there is none.
    pub cuda: Option<MakeCudaLibrary>,
}

inventory::collect!(LibraryEntry);

/// The linked libraries, by id.
pub fn linked() -> Vec<&'static LibraryEntry> {
    let mut entries: Vec<_> = inventory::iter::<LibraryEntry>.into_iter().collect();
    entries.sort_by_key(|entry| entry.id);
    entries
}

/// The linked library with this id.
pub fn find(id: LibraryId) -> Option<&'static LibraryEntry> {
    inventory::iter::<LibraryEntry>.into_iter().find(|entry| entry.id == id)
}

/// An operation's name, for errors of a side that has only its number.
pub(crate) fn operation_name(library: LibraryId, code: u16) -> String {
    let operations = if library == LibraryId::CORE { CORE } else { find(library).map_or(&[][..], |it| it.operations) };
    match operations.iter().find(|(known, _)| *known == code) {
        Some((_, name)) => name.to_string(),
        None => format!("{library} operation {code}"),
    }
}

const CORE: &[(u16, &str)] = &[Copy::ID, Fill::ID, GraphLaunch::ID];
