//! Tests and doc-tests have no `main` of their own: they become the worker before it.

use std::ffi::{c_char, c_int};

type Initialiser = extern "C" fn(c_int, *const *const c_char, *const *const c_char);

/// Runs among the program's initialisers, before `main`.
#[used]
// SAFETY: the section holds pointers to functions of this signature, which the C runtime calls.
#[unsafe(link_section = ".init_array")]
static ENTRY: Initialiser = become_worker;

unsafe extern "C" {
    static __init_array_start: [Initialiser; 0];
    static __init_array_end: [Initialiser; 0];
}

extern "C" fn become_worker(count: c_int, arguments: *const *const c_char, environment: *const *const c_char) {
    if std::env::var_os(super::WORKER_ENV).is_some() {
        // Libraries register in initialisers too; those behind this one have not run, and will not,
        // since a worker does not come back from here.
        for initialiser in later() {
            initialiser(count, arguments, environment);
        }
    }
    super::init();
}

/// The initialisers behind this one.
fn later() -> &'static [Initialiser] {
    let (start, end) = (&raw const __init_array_start, &raw const __init_array_end);
    // SAFETY: the linker puts both symbols around one array of initialisers.
    let all = unsafe {
        let len = end.cast::<Initialiser>().offset_from(start.cast::<Initialiser>());
        std::slice::from_raw_parts(start.cast::<Initialiser>(), len as usize)
    };
    let own = all.iter().position(|entry| *entry as usize == become_worker as *const () as usize);
    own.map_or(&[], |own| &all[own + 1..])
}
