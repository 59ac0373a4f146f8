//! The command line.
#![allow(missing_docs, reason = "the macro generates the items")]

xflags::xflags! {
    /// The project's automation.
    cmd xtask {
        /// Everything that a submission must pass.
        cmd ci {}
        /// The tests, or those whose names contain a filter.
        cmd test {
            /// Part of the tests' names.
            optional filter: String
        }
    }
}
