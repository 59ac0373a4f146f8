//! Matrices as strided ranges of slices. Making one checks that every element lies inside.

/// A matrix that is read.
pub(super) struct MatrixRef<'a, T> {
    data: &'a [T],
    shape: Shape,
}

/// A matrix that is written. No two of its elements share a place.
pub(super) struct MatrixMut<'a, T> {
    data: &'a mut [T],
    shape: Shape,
}

/// Extents, and the distances between neighbours.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    pub rows: usize,
    pub columns: usize,
    pub row_stride: usize,
    pub column_stride: usize,
}

impl Shape {
    pub fn transposed(self) -> Self {
        Shape { rows: self.columns, columns: self.rows, row_stride: self.column_stride, column_stride: self.row_stride }
    }

    /// Whether all elements lie in `len` elements, whose distances `isize` can hold.
    fn fits(&self, len: usize) -> bool {
        if self.rows == 0 || self.columns == 0 {
            return true;
        }
        let last = (|| {
            let row = (self.rows - 1).checked_mul(self.row_stride)?;
            row.checked_add((self.columns - 1).checked_mul(self.column_stride)?)
        })();
        let strides = isize::try_from(self.row_stride).is_ok() && isize::try_from(self.column_stride).is_ok();
        strides && last.is_some_and(|last| last < len)
    }

    /// Whether no two elements share a place: one stride steps over the whole of the other extent.
    fn is_injective(&self) -> bool {
        let steps_over = |outer: usize, count: usize, inner: usize| {
            inner > 0 && (count - 1).checked_mul(inner).is_some_and(|extent| extent < outer)
        };
        match (self.rows, self.columns) {
            (0, _) | (_, 0) | (1, 1) => true,
            (1, _) => self.column_stride > 0,
            (_, 1) => self.row_stride > 0,
            (rows, columns) => {
                steps_over(self.row_stride, columns, self.column_stride)
                    || steps_over(self.column_stride, rows, self.row_stride)
            }
        }
    }
}

impl<'a, T: Copy> MatrixRef<'a, T> {
    /// `None` when it does not lie inside `data`.
    pub fn new(data: &'a [T], shape: Shape) -> Option<Self> {
        shape.fits(data.len()).then_some(MatrixRef { data, shape })
    }

    pub fn shape(&self) -> Shape {
        self.shape
    }

    pub fn as_ptr(&self) -> *const T {
        self.data.as_ptr()
    }

    /// Columns `first..first + count` as `f32`, each column contiguous or each row, as they lie here.
    pub fn widen(&self, first: usize, count: usize, to_f32: impl Fn(T) -> f32) -> (Vec<f32>, Shape) {
        let Shape { rows, row_stride, column_stride, .. } = self.shape;
        let by_rows = column_stride <= row_stride;
        let (outer, outer_stride, inner, inner_stride) =
            if by_rows { (rows, row_stride, count, column_stride) } else { (count, column_stride, rows, row_stride) };
        let start = first * column_stride;
        let mut wide = Vec::with_capacity(outer * inner);
        for vector in 0..outer {
            let from = start + vector * outer_stride;
            if inner_stride == 1 {
                wide.extend(self.data[from..from + inner].iter().map(|value| to_f32(*value)));
            } else {
                wide.extend((0..inner).map(|i| to_f32(self.data[from + i * inner_stride])));
            }
        }
        let shape = Shape { rows: outer, columns: inner, row_stride: inner, column_stride: 1 };
        (wide, if by_rows { shape } else { shape.transposed() })
    }
}

impl<'a, T: Copy> MatrixMut<'a, T> {
    /// `None` when it does not lie inside `data`, or when elements would share a place.
    pub fn new(data: &'a mut [T], shape: Shape) -> Option<Self> {
        (shape.fits(data.len()) && shape.is_injective()).then_some(MatrixMut { data, shape })
    }

    pub fn shape(&self) -> Shape {
        self.shape
    }

    pub fn as_mut_ptr(&mut self) -> *mut T {
        self.data.as_mut_ptr()
    }

    /// Replaces every element of columns `first..first + count`; `f` gets row, column within the
    /// range, and the old value.
    pub fn update(&mut self, first: usize, count: usize, f: impl Fn(usize, usize, T) -> T) {
        let Shape { rows, row_stride, column_stride, .. } = self.shape;
        let mut at = |row: usize, column: usize| {
            let place = &mut self.data[row * row_stride + (first + column) * column_stride];
            *place = f(row, column, *place);
        };
        if column_stride <= row_stride {
            (0..rows).for_each(|row| (0..count).for_each(|column| at(row, column)));
        } else {
            (0..count).for_each(|column| (0..rows).for_each(|row| at(row, column)));
        }
    }
}
