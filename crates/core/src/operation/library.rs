//! The names of libraries: stable bits, and the numbers that operations carry.

use std::fmt;

use serde::{Deserialize, Serialize};

bitflags::bitflags! {
    /// The libraries that a device is asked to bring up. The bit values are stable.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
    pub struct EnabledLibraries: u64 {
        /// cuBLAS.
        const BLAS = 1 << 0;
        /// cuDNN.
        const CUDNN = 1 << 1;
        /// cuFFT.
        const CUFFT = 1 << 2;
        /// cuRAND.
        const CURAND = 1 << 3;
        /// cuSOLVER.
        const CUSOLVER = 1 << 4;
        /// cuBLASLt.
        const CUBLASLT = 1 << 5;
        /// NVRTC: kernels compiled at run time.
        const NVRTC = 1 << 6;
        /// cuTENSOR.
        const CUTENSOR = 1 << 7;
        /// cuSPARSE.
        const CUSPARSE = 1 << 8;
        /// NCCL.
        const NCCL = 1 << 9;
        /// CUTLASS.
        const CUTLASS = 1 << 10;
        /// TensorRT.
        const TENSORRT = 1 << 11;
        /// FlashAttention.
        const FLASHATTN = 1 << 12;
        /// CUB and Thrust.
        const CUB_THRUST = 1 << 13;
        /// Telemetry.
        const TELEMETRY = 1 << 14;
        /// Every library named above.
        const ALL = (1 << 15) - 1;
    }
}

impl Default for EnabledLibraries {
    fn default() -> Self {
        EnabledLibraries::BLAS
    }
}

impl EnabledLibraries {
    /// The bit of a user's own library: `number` from 0 to 30.
    ///
    /// # Panics
    /// In constant evaluation or at run time when `number` is over 30.
    pub const fn custom(number: u8) -> Self {
        assert!(number <= 30, "custom libraries are numbered 0 to 30");
        EnabledLibraries::from_bits_retain(1 << (32 + number as u64))
    }
}

/// A library's number: the position of its bit in [`EnabledLibraries`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LibraryId(u8);

impl LibraryId {
    /// Core's own operations: copies and fills.
    pub(crate) const CORE: LibraryId = LibraryId(63);

    /// The id of the library with this one bit.
    ///
    /// # Panics
    /// When `library` is not exactly one bit; meant for constants.
    pub const fn of(library: EnabledLibraries) -> Self {
        let bits = library.bits();
        assert!(bits.count_ones() == 1, "a library id is one bit");
        LibraryId(bits.trailing_zeros() as u8)
    }

    /// The library's bit.
    pub const fn bit(self) -> EnabledLibraries {
        EnabledLibraries::from_bits_retain(1 << self.0)
    }

    /// The bit's position.
    pub const fn index(self) -> u8 {
        self.0
    }

    pub(crate) const fn from_index(index: u8) -> Option<Self> {
        if index < 64 { Some(LibraryId(index)) } else { None }
    }
}

impl fmt::Display for LibraryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut names = self.bit().iter_names().filter(|(name, _)| *name != "ALL");
        match names.next() {
            Some((name, _)) => f.write_str(name),
            None => write!(f, "library {}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_stable() {
        use EnabledLibraries as L;
        let named = [
            L::BLAS,
            L::CUDNN,
            L::CUFFT,
            L::CURAND,
            L::CUSOLVER,
            L::CUBLASLT,
            L::NVRTC,
            L::CUTENSOR,
            L::CUSPARSE,
            L::NCCL,
            L::CUTLASS,
            L::TENSORRT,
            L::FLASHATTN,
            L::CUB_THRUST,
            L::TELEMETRY,
        ];
        let mut all = L::empty();
        for (position, library) in named.into_iter().enumerate() {
            assert_eq!(library.bits(), 1 << position);
            assert_eq!(LibraryId::of(library).bit(), library);
            assert!(L::ALL.contains(library));
            all |= library;
        }
        assert_eq!(all, L::ALL);
        assert_eq!(L::default(), L::BLAS);
    }

    #[test]
    fn bits_survive_a_round_trip() {
        for library in EnabledLibraries::ALL.iter().chain([EnabledLibraries::custom(30)]) {
            assert_eq!(EnabledLibraries::from_bits_retain(library.bits()), library);
        }
        assert_eq!(EnabledLibraries::from_bits(EnabledLibraries::ALL.bits()), Some(EnabledLibraries::ALL));
        assert_eq!(LibraryId::of(EnabledLibraries::CUFFT).to_string(), "CUFFT");
    }
}
