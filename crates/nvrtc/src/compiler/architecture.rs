//! What code is generated for.

use std::fmt;
use std::str::FromStr;

use atomr_cuda_core::{GpuError, Result};
use serde::{Deserialize, Serialize};

/// A GPU architecture: `sm_80`, `sm_90a`, `sm_100f`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Architecture {
    major: u8,
    minor: u8,
    features: Features,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
enum Features {
    Base,
    /// `f`: those of a family.
    Family,
    /// `a`: those of one architecture alone.
    Specific,
}

impl Architecture {
    /// The architecture of a device with this compute capability, with its own features (`sm_90a`)
    /// from 9.0 on, where there are any.
    ///
    /// # Errors
    /// [`GpuError::InvalidArgument`] for numbers that no GPU can have.
    pub fn of(major: i32, minor: i32) -> Result<Self> {
        let features = if major >= 9 { Features::Specific } else { Features::Base };
        match (u8::try_from(major), u8::try_from(minor)) {
            (Ok(major @ 1..), Ok(minor @ 0..10)) => Ok(Architecture { major, minor, features }),
            _ => Err(GpuError::invalid("nvrtc.architecture", "capability", format!("{major}.{minor}"))),
        }
    }

    /// The same without features of its own: code that also runs on later minor versions.
    pub fn base(self) -> Self {
        Architecture { features: Features::Base, ..self }
    }

    /// Compute capability: major, minor.
    pub fn capability(self) -> (u32, u32) {
        (self.major.into(), self.minor.into())
    }

    /// The number that NVRTC lists it under: 90 for `sm_90a`.
    pub(crate) fn number(self) -> i32 {
        i32::from(self.major) * 10 + i32::from(self.minor)
    }
}

impl fmt::Display for Architecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let features = match self.features {
            Features::Base => "",
            Features::Family => "f",
            Features::Specific => "a",
        };
        write!(f, "sm_{}{}{features}", self.major, self.minor)
    }
}

impl FromStr for Architecture {
    type Err = GpuError;

    /// Reads `sm_90a`, or `9.0a` as compute capabilities are written.
    fn from_str(text: &str) -> Result<Self> {
        let invalid = || GpuError::invalid("nvrtc.architecture", "architecture", format!("`{text}`; as in `sm_90a`"));
        let (digits, features) = match text.as_bytes().last() {
            Some(b'a') => (&text[..text.len() - 1], Features::Specific),
            Some(b'f') => (&text[..text.len() - 1], Features::Family),
            _ => (text, Features::Base),
        };
        let (major, minor) = match digits.strip_prefix("sm_") {
            Some(digits) => digits.split_at_checked(digits.len().saturating_sub(1)).ok_or_else(invalid)?,
            None => digits.split_once('.').ok_or_else(invalid)?,
        };
        let number = |part: &str| match part.bytes().all(|byte| byte.is_ascii_digit()) {
            true => part.parse::<u8>().map_err(|_| invalid()),
            false => Err(invalid()),
        };
        match (number(major)?, number(minor)?) {
            (major @ 1..=24, minor @ 0..10) => Ok(Architecture { major, minor, features }),
            _ => Err(invalid()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_and_written() {
        for (text, name) in [("sm_80", "sm_80"), ("9.0a", "sm_90a"), ("sm_100f", "sm_100f"), ("12.0", "sm_120")] {
            assert_eq!(text.parse::<Architecture>().unwrap().to_string(), name);
        }
        for text in ["", "a", "sm_", "sm_9", "sm_90b", "90", "9.10", "sm_9é", "é", "sm_+90", "999.0", ".0", "9."] {
            assert!(text.parse::<Architecture>().is_err(), "{text}");
        }
    }

    #[test]
    fn devices_get_their_own_features() {
        assert_eq!(Architecture::of(8, 6).unwrap().to_string(), "sm_86");
        assert_eq!(Architecture::of(9, 0).unwrap().to_string(), "sm_90a");
        assert_eq!(Architecture::of(10, 3).unwrap().base().to_string(), "sm_103");
        for (major, minor) in [(0, 0), (-1, 0), (9, -1), (9, 10), (256, 0)] {
            assert!(Architecture::of(major, minor).is_err());
        }
    }
}
