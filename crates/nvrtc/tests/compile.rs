//! The compiler, which needs NVRTC and no GPU.

use std::path::Path;

use atomr_cuda_core::GpuError;
use atomr_cuda_nvrtc::Source;
use atomr_cuda_nvrtc::compiler::{self, Architecture, Compiler};

const SCALE: &str = r#"
template <typename T, int N> __global__ void scale(T* x) { x[threadIdx.x] *= T(N); }
extern "C" __global__ void set(float* x, float value) {
    __shared__ float tile[64];
    tile[threadIdx.x % 64] = value;
    __syncthreads();
    x[threadIdx.x] = tile[threadIdx.x % 64];
}
"#;

/// Whether there is an NVRTC; says so by name where there is none.
fn nvrtc() -> bool {
    match compiler::version() {
        Ok(_) => true,
        Err(error @ GpuError::LibraryMissing { .. }) => {
            println!("{}: skipped: no NVRTC ({error})", std::thread::current().name().unwrap_or("a test"));
            false
        }
        Err(error) => panic!("{error}"),
    }
}

fn sm(text: &str) -> Architecture {
    text.parse().expect("an architecture")
}

fn uncached() -> Compiler {
    Compiler::new(None, 0)
}

fn files(folder: &Path) -> Vec<std::path::PathBuf> {
    std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path()).collect()
}

#[test]
fn templates_get_their_lowered_names_and_kernels_their_resources() {
    if !nvrtc() {
        return;
    }
    let source = Source::new("scale.cu", SCALE).name_expression("scale<float, 4>").name_expression("scale<double, 2>");
    for name in ["sm_80", "sm_86", "sm_90a", "sm_100"] {
        let compiled = uncached().compile(&source, sm(name)).expect("compiles");
        assert!(compiled.cubin().starts_with(b"\x7fELF"));
        assert_eq!(compiled.architecture(), sm(name));
        assert_eq!(compiled.lowered("scale<float, 4>"), Some("_Z5scaleIfLi4EEvPT_"));
        assert_eq!(compiled.lowered("scale<double, 2>"), Some("_Z5scaleIdLi2EEvPT_"));
        assert_eq!(compiled.lowered("scale<int, 1>"), None);
        assert_eq!(compiled.log(), "");
        let mut kernels: Vec<_> = compiled.resources().iter().map(|kernel| kernel.kernel.as_str()).collect();
        kernels.sort_unstable();
        assert_eq!(kernels, ["_Z5scaleIdLi2EEvPT_", "_Z5scaleIfLi4EEvPT_", "set"]);
        for kernel in compiled.resources() {
            assert!((1..=64).contains(&kernel.registers), "{kernel:?}");
            assert_eq!((kernel.spill_stores, kernel.spill_loads), (0, 0));
            let expected = if kernel.kernel == "set" { 256 } else { 0 };
            // From compute capability 9.0 on, the system takes 1 KiB of its own.
            assert_eq!(kernel.static_shared % 1024, expected, "{kernel:?}");
        }
    }
}

#[test]
fn headers_options_and_the_toolkit_are_found() {
    if !nvrtc() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("on_disk.h"), "#define ON_DISK 1\n").expect("written");
    let code = r#"
        #include "in_memory.h"
        #include "on_disk.h"
        static_assert(IN_MEMORY == 3 && ON_DISK == 1 && OPTION == 7, "all three");
        extern "C" __global__ void nothing() {}
    "#;
    let source = Source::new("a.cu", code)
        .header("in_memory.h", "#define IN_MEMORY 3")
        .include_dir(folder.path())
        .option("-DOPTION=7");
    uncached().compile(&source, sm("sm_90a")).expect("compiles");

    let half = "#include <cuda_fp16.h>\nextern \"C\" __global__ void twice(__half* x) { *x = __hadd(*x, *x); }";
    let source = Source::new("half.cu", half).toolkit_headers();
    match uncached().compile(&source, sm("sm_90a")) {
        Ok(compiled) => assert_eq!(compiled.resources()[0].kernel, "twice"),
        Err(GpuError::LibraryMissing { library, searched, .. }) => {
            assert_eq!(library, "CUDA headers");
            assert!(!searched.is_empty());
            println!("the toolkit's headers: skipped: there are none");
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn errors_name_the_source_and_the_line() {
    if !nvrtc() {
        return;
    }
    let error = uncached().compile(&Source::new("bad.cu", "\n\n__global__ void k() { y = 1; }"), sm("sm_90a"));
    match error {
        Err(GpuError::Compile { source_name, line, log }) => {
            assert_eq!((source_name.as_str(), line), ("bad.cu", Some(3)));
            assert!(log.contains("\"y\" is undefined"), "{log}");
        }
        other => panic!("{other:?}"),
    }
    let missing = uncached().compile(&Source::new("bad.cu", "#include \"nowhere.h\""), sm("sm_90a"));
    assert!(matches!(missing, Err(GpuError::Compile { line: Some(1), .. })), "{missing:?}");
    let unknown = Source::new("a.cu", SCALE).name_expression("scale<nothing, 4>");
    let unknown = uncached().compile(&unknown, sm("sm_90a"));
    assert!(matches!(unknown, Err(GpuError::Compile { .. })), "{unknown:?}");
}

#[test]
fn what_cannot_be_compiled_is_an_invalid_argument() {
    if !nvrtc() {
        return;
    }
    let cases = [
        (Source::new("a.cu", ""), "sm_90a", "code"),
        (Source::new("a.cu", SCALE).option("--no-such-option=3"), "sm_90a", "option"),
        (Source::new("a.cu", SCALE).include_dir("/no/such/folder"), "sm_90a", "include_dir"),
        (Source::new("a.cu", SCALE), "sm_35", "architecture"),
    ];
    for (source, architecture, expected) in cases {
        match uncached().compile(&source, sm(architecture)) {
            Err(GpuError::InvalidArgument { argument, .. }) => assert_eq!(argument, expected),
            other => panic!("{expected}: {other:?}"),
        }
    }
}

#[test]
fn results_are_kept_in_memory_and_on_disk() {
    if !nvrtc() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let compiler = || Compiler::new(Some(folder.path().into()), 1 << 20);
    let source = Source::new("scale.cu", SCALE).name_expression("scale<float, 4>");
    let first = compiler();
    let fresh = first.compile(&source, sm("sm_90a")).expect("compiles");
    assert!(!fresh.from_cache());
    let again = first.compile(&source, sm("sm_90a")).expect("in memory");
    assert!(again.from_cache());
    let other = compiler().compile(&source, sm("sm_90a")).expect("on disk");
    assert!(other.from_cache());
    for found in [&again, &other] {
        assert_eq!(found.cubin(), fresh.cubin());
        assert_eq!(found.lowered("scale<float, 4>"), fresh.lowered("scale<float, 4>"));
        assert_eq!(found.resources(), fresh.resources());
    }
    let entries = files(folder.path());
    assert_eq!(entries.len(), 1, "nothing half-written stays: {entries:?}");
    std::fs::write(&entries[0], "damaged").expect("written");
    let repaired = compiler().compile(&source, sm("sm_90a")).expect("compiled again");
    assert!(!repaired.from_cache());
    assert!(compiler().compile(&source, sm("sm_90a")).expect("on disk again").from_cache());
    assert!(!compiler().compile(&source.option("-DX"), sm("sm_90a")).expect("another source").from_cache());
}

#[test]
fn several_threads_compile_at_once() {
    if !nvrtc() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let compiler = Compiler::new(Some(folder.path().into()), 1 << 20);
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let compiler = &compiler;
            scope.spawn(move || {
                for round in 0..4 {
                    let source = Source::new("scale.cu", SCALE).option(format!("-DROUND={}", (round + thread) % 4));
                    compiler.compile(&source, sm("sm_90a")).expect("compiles");
                }
            });
        }
    });
    assert_eq!(files(folder.path()).len(), 4);
}
