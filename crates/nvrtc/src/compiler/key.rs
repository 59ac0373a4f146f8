//! The key under which a result is cached: everything that decides it.

use std::fmt;
use std::path::Path;
use std::time::UNIX_EPOCH;

use atomr_cuda_core::Result;
use sha2::{Digest, Sha256};

use super::source::invalid;
use super::{Architecture, Source};

/// Files that one include folder may hold.
const MOST_FILES: usize = 100_000;
/// Rises when what is cached, or how, changes.
const FORMAT: u32 = 1;

/// A digest of a source, an architecture and a compiler.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Key([u8; 32]);

impl Key {
    /// `toolkit` is the folder of the toolkit's headers, where the source asks for them.
    pub fn new(
        source: &Source,
        architecture: Architecture,
        version: (i32, i32),
        toolkit: Option<&Path>,
    ) -> Result<Self> {
        let mut hash = Hash(Sha256::new());
        hash.number(FORMAT.into());
        hash.number(version.0 as u64);
        hash.number(version.1 as u64);
        hash.text(&architecture.to_string());
        hash.text(&source.name);
        hash.text(&source.code);
        hash.list(&source.headers, |hash, (name, text)| {
            hash.text(name);
            hash.text(text);
        });
        hash.list(&source.options, |hash, option| hash.text(option));
        hash.list(&source.name_expressions, |hash, expression| hash.text(expression));
        hash.number(source.include_dirs.len() as u64);
        for folder in &source.include_dirs {
            hash.bytes(folder.as_os_str().as_encoded_bytes());
            hash.folder(folder)?;
        }
        if let Some(toolkit) = toolkit {
            // An installed toolkit changes as a whole, and its version header with it.
            hash.bytes(toolkit.as_os_str().as_encoded_bytes());
            hash.file(&toolkit.join("cuda.h"));
            hash.file(&toolkit.join("cuda_runtime_api.h"));
        }
        Ok(Key(hash.0.finalize().into()))
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Every part goes in with its length, so that no two sources give the same bytes.
struct Hash(Sha256);

impl Hash {
    fn number(&mut self, value: u64) {
        self.0.update(value.to_le_bytes());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.0.update(bytes);
    }

    fn text(&mut self, text: &str) {
        self.bytes(text.as_bytes());
    }

    fn list<T>(&mut self, items: &[T], each: impl Fn(&mut Self, &T)) {
        self.number(items.len() as u64);
        items.iter().for_each(|item| each(self, item));
    }

    /// Size and time of a file; a missing one has neither.
    fn file(&mut self, path: &Path) {
        let metadata = std::fs::metadata(path).ok();
        let changed =
            metadata.as_ref().and_then(|it| it.modified().ok()).and_then(|it| it.duration_since(UNIX_EPOCH).ok());
        self.number(metadata.map_or(u64::MAX, |it| it.len()));
        self.number(changed.map_or(0, |it| it.as_nanos() as u64));
    }

    /// Names, sizes and times of all files in a folder, in an order of their own.
    fn folder(&mut self, root: &Path) -> Result<()> {
        let fail =
            |path: &Path, error: &dyn fmt::Display| invalid("include_dir", format!("{}: {error}", path.display()));
        if !root.is_dir() {
            return Err(fail(root, &"it is not a folder"));
        }
        let mut files = Vec::new();
        let mut folders = vec![root.to_path_buf()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(&folder).map_err(|error| fail(&folder, &error))? {
                let entry = entry.map_err(|error| fail(&folder, &error))?;
                // Links to folders are not followed: they may lead back.
                match entry.file_type() {
                    Ok(kind) if kind.is_dir() => folders.push(entry.path()),
                    _ => files.push(entry.path()),
                }
                if files.len() + folders.len() > MOST_FILES {
                    return Err(fail(root, &format!("more than {MOST_FILES} files; name a folder further inside")));
                }
            }
        }
        files.sort_unstable();
        self.number(files.len() as u64);
        for path in &files {
            self.bytes(path.as_os_str().as_encoded_bytes());
            self.file(path);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(source: &Source) -> String {
        Key::new(source, Architecture::of(9, 0).unwrap(), (13, 0), None).unwrap().to_string()
    }

    #[test]
    fn every_part_of_a_source_decides_its_key() {
        let source = || Source::new("a.cu", "code");
        let mut keys = vec![
            key(&source()),
            key(&Source::new("b.cu", "code")),
            key(&Source::new("a.cu", "code ")),
            key(&source().header("h", "t")),
            key(&source().header("ht", "")),
            key(&source().option("h")),
            key(&source().option("h").option("t")),
            key(&source().name_expression("h")),
            Key::new(&source(), Architecture::of(8, 0).unwrap(), (13, 0), None).unwrap().to_string(),
            Key::new(&source(), Architecture::of(9, 0).unwrap().base(), (13, 0), None).unwrap().to_string(),
            Key::new(&source(), Architecture::of(9, 0).unwrap(), (13, 1), None).unwrap().to_string(),
        ];
        assert_eq!(keys[0], key(&source()));
        let all = keys.len();
        keys.sort();
        keys.dedup();
        assert_eq!(keys.len(), all);
    }

    #[test]
    fn a_changed_header_file_changes_the_key() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("inner")).unwrap();
        std::fs::write(folder.path().join("inner/a.h"), "1").unwrap();
        let source = Source::new("a.cu", "code").include_dir(folder.path());
        let before = key(&source);
        assert_eq!(before, key(&source));
        std::fs::write(folder.path().join("inner/a.h"), "22").unwrap();
        assert_ne!(before, key(&source));
        let missing = Source::new("a.cu", "code").include_dir(folder.path().join("missing"));
        let error = Key::new(&missing, Architecture::of(9, 0).unwrap(), (13, 0), None).err().expect("no such folder");
        assert!(error.to_string().contains("include_dir"), "{error}");
    }
}
