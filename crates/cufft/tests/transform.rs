//! Transforms against the definition in `f64`, and against identities of the Fourier transform.

use atomr_cuda_core::{Complex, Device, Fault, GpuError, GpuRef, f16};
use atomr_cuda_cufft::{Fft, FftOptions, Norm, Real};
use atomr_cuda_testing::{Element, on_every_executor, poison, random, seeded};

type C64 = Complex<f64>;

/// The transform by its definition, dimension by dimension; `sign` is -1 forward.
fn definition(data: &[C64], lengths: &[usize], sign: f64) -> Vec<C64> {
    let mut data = data.to_vec();
    let mut inner = data.len();
    for length in lengths {
        inner /= length;
        let turn = |k: usize| C64::from_polar(1.0, sign * std::f64::consts::TAU * k as f64 / *length as f64);
        let turns: Vec<C64> = (0..*length).map(turn).collect();
        for block in data.chunks_mut(length * inner) {
            for at in 0..inner {
                let line: Vec<C64> = block[at..].iter().step_by(inner).copied().collect();
                for (k, to) in block[at..].iter_mut().step_by(inner).enumerate() {
                    *to = line.iter().enumerate().map(|(n, value)| value * turns[k * n % length]).sum();
                }
            }
        }
    }
    data
}

/// Errors of a fast transform grow with the logarithm of its length.
fn assert_close<T: Element>(found: &[T], exact: &[C64], what: &str) {
    assert_eq!(found.len(), exact.len(), "{what}");
    let size = (exact.iter().map(|value| value.norm_sqr()).sum::<f64>() / exact.len() as f64).sqrt();
    let bound = 8.0 * T::EPSILON * (2.0 + (exact.len() as f64).log2()) * (size + 1e-3);
    for (at, (found, exact)) in found.iter().zip(exact).enumerate() {
        let error = (found.to_complex() - exact).norm();
        assert!(error <= bound, "{what} {}: [{at}] {found:?} is {error:e} from {exact}; {bound:e}", T::DTYPE);
    }
}

fn wide<T: Element>(values: &[T]) -> Vec<C64> {
    values.iter().map(|value| value.to_complex()).collect()
}

async fn poisoned<T: Element>(device: &Device, len: usize) -> GpuRef<T> {
    device.upload(&poison::<T>(len)).await.unwrap()
}

/// Each transform of a batch by itself.
fn each(data: &[C64], lengths: &[usize], sign: f64) -> Vec<C64> {
    let elements = lengths.iter().product();
    data.chunks(elements).flat_map(|one| definition(one, lengths, sign)).collect()
}

async fn check_complex<R: Real>(device: &Device, lengths: &[usize], batch: usize)
where
    R::Complex: Element + atomr_cuda_cufft::ComplexElement,
{
    let what = format!("{lengths:?} x {batch}");
    let len = lengths.iter().product::<usize>() * batch;
    let x: Vec<R::Complex> = random(&mut seeded(len as u64), len);
    let (dx, dy) = (device.upload(&x).await.unwrap(), poisoned::<R::Complex>(device, len).await);
    device.fft(&dx, &dy).shape(lengths).batch(batch).await.unwrap();
    assert_close(&device.download(&dy).await.unwrap(), &each(&wide(&x), lengths, -1.0), &what);
    device.ifft(&dx, &dy).shape(lengths).batch(batch).await.unwrap();
    assert_close(&device.download(&dy).await.unwrap(), &each(&wide(&x), lengths, 1.0), &what);
    // There and back, in place.
    device.fft_in_place(&dx).shape(lengths).batch(batch).norm(Norm::Ortho).await.unwrap();
    device.ifft_in_place(&dx).shape(lengths).batch(batch).norm(Norm::Ortho).await.unwrap();
    assert_close(&device.download(&dx).await.unwrap(), &wide(&x), &what);
}

/// The first `n / 2 + 1` of each line.
fn halves(data: &[C64], lengths: &[usize]) -> Vec<C64> {
    let last = lengths[lengths.len() - 1];
    data.chunks(last).flat_map(|line| line[..last / 2 + 1].to_vec()).collect()
}

async fn check_real<R: Real + Element>(device: &Device, lengths: &[usize], batch: usize)
where
    R::Complex: Element,
{
    let what = format!("real {lengths:?} x {batch}");
    let (len, last) = (lengths.iter().product::<usize>() * batch, lengths[lengths.len() - 1]);
    let lines = len / last;
    let x: Vec<R> = random(&mut seeded(len as u64), len);
    let (dx, dy) = (device.upload(&x).await.unwrap(), poisoned::<R::Complex>(device, lines * (last / 2 + 1)).await);
    device.rfft(&dx, &dy).shape(lengths).batch(batch).await.unwrap();
    let exact = halves(&each(&wide(&x), lengths, -1.0), lengths);
    assert_close(&device.download(&dy).await.unwrap(), &exact, &what);
    let back = poisoned::<R>(device, len).await;
    device.irfft(&dy, &back).shape(lengths).batch(batch).norm(Norm::Backward).await.unwrap();
    assert_close(&device.download(&back).await.unwrap(), &wide(&x), &what);

    let row = 2 * (last / 2 + 1);
    let mut padded = poison::<R>(lines * row);
    padded.chunks_mut(row).zip(x.chunks(last)).for_each(|(row, x)| row[..last].copy_from_slice(x));
    let padded = device.upload(&padded).await.unwrap();
    device.rfft_in_place(&padded).shape(lengths).batch(batch).await.unwrap();
    let found = device.download(&padded).await.unwrap();
    let pairs: Vec<C64> = found.chunks(2).map(|pair| C64::new(pair[0].to_f64(), pair[1].to_f64())).collect();
    let bound = 8.0 * R::EPSILON * (2.0 + (len as f64).log2()) * (len as f64).sqrt();
    assert!(pairs.iter().zip(&exact).all(|(found, exact)| (found - exact).norm() <= bound), "{what} in place");
    device.irfft_in_place(&padded).shape(lengths).batch(batch).norm(Norm::Backward).await.unwrap();
    let found = device.download(&padded).await.unwrap();
    let found: Vec<R> = found.chunks(row).flat_map(|row| row[..last].to_vec()).collect();
    assert_close(&found, &wide(&x), &format!("{what} in place and back"));
}

/// Odd, one, prime, powers, and what no small factor divides.
const SHAPES: [(&[usize], usize); 12] = [
    (&[1], 1),
    (&[2], 3),
    (&[7], 5),
    (&[64], 4),
    (&[105], 2),
    (&[211], 3),
    (&[1024], 2),
    (&[5, 6], 3),
    (&[16, 1], 2),
    (&[1, 9], 2),
    (&[3, 4, 5], 2),
    (&[8, 8, 8], 1),
];

#[test]
fn every_shape_and_type() {
    on_every_executor(async |device| {
        for (lengths, batch) in SHAPES {
            check_complex::<f32>(device, lengths, batch).await;
            check_complex::<f64>(device, lengths, batch).await;
            check_real::<f32>(device, lengths, batch).await;
            check_real::<f64>(device, lengths, batch).await;
        }
    });
}

#[test]
fn halves_in_powers_of_two() {
    on_every_executor(async |device| {
        for (lengths, batch) in [(&[64][..], 3), (&[256], 2), (&[16, 32], 2)] {
            check_complex::<f16>(device, lengths, batch).await;
            check_real::<f16>(device, lengths, batch).await;
        }
        let x = device.alloc::<Complex<f16>>(12).await.unwrap();
        let error = device.fft_in_place(&x).shape(&[12]).await.unwrap_err();
        assert!(matches!(&error, GpuError::InvalidArgument { argument, .. } if argument == "shape"), "{error}");
    });
}

#[test]
fn strides_and_embedded_layouts() {
    on_every_executor(async |device| {
        // Two transforms of 3 x 4 inside arrays of 5 x 6 (from) and 3 x 7 (to), every second and every
        // third element.
        let (lengths, from, to) = ([3, 4], ([5, 6], 2, 61), ([3, 7], 3, 64));
        let place = |(embed, stride, distance): ([usize; 2], usize, usize), b: usize, i: usize, j: usize| {
            b * distance + (i * embed[1] + j) * stride
        };
        let x: Vec<Complex<f64>> = random(&mut seeded(4), 130);
        let (dx, dy) = (device.upload(&x).await.unwrap(), poisoned::<Complex<f64>>(device, 140).await);
        let call = device.fft(&dx, &dy).shape(&lengths).batch(2).norm(Norm::Forward);
        call.input(&from.0, from.1, from.2).output(&to.0, to.1, to.2).await.unwrap();
        let found = device.download(&dy).await.unwrap();
        let mut written = vec![false; found.len()];
        for b in 0..2 {
            let picked: Vec<C64> = (0..12).map(|at| x[place(from, b, at / 4, at % 4)]).collect();
            for (at, exact) in definition(&picked, &lengths, -1.0).iter().enumerate() {
                let to = place(to, b, at / 4, at % 4);
                assert!((found[to] - exact / 12.0).norm() < 1e-14, "transform {b}, element {at}");
                written[to] = true;
            }
        }
        let untouched = found.iter().zip(&written).all(|(value, written)| *written || value.re.is_nan());
        assert!(untouched, "what lies between was written");

        // The elements of 6 transforms in turn.
        let x: Vec<f32> = random(&mut seeded(5), 6 * 10);
        let (dx, dy) = (device.upload(&x).await.unwrap(), poisoned::<Complex<f32>>(device, 6 * 6).await);
        device.rfft(&dx, &dy).shape(&[10]).batch(6).input(&[10], 6, 1).await.unwrap();
        let exact: Vec<C64> = (0..6)
            .flat_map(|b| {
                let line: Vec<C64> = x[b..].iter().step_by(6).map(|x| x.to_complex()).collect();
                definition(&line, &[10], -1.0)[..6].to_vec()
            })
            .collect();
        assert_close(&device.download(&dy).await.unwrap(), &exact, "in turn");
    });
}

#[test]
fn identities() {
    on_every_executor(async |device| {
        let n = 3 * 5 * 64;
        let x: Vec<Complex<f64>> = random(&mut seeded(6), n);
        let transform = async |x: &[Complex<f64>]| {
            let (dx, dy) = (device.upload(x).await.unwrap(), poisoned::<Complex<f64>>(device, n).await);
            device.fft(&dx, &dy).shape(&[n]).await.unwrap();
            device.download(&dy).await.unwrap()
        };
        let y = transform(&x).await;
        // Parseval: energy is the same, times n.
        let energy = |values: &[C64]| values.iter().map(|value| value.norm_sqr()).sum::<f64>();
        assert!((energy(&y) / energy(&x) / n as f64 - 1.0).abs() < 1e-13);
        // A shift turns phases.
        let shifted: Vec<C64> = (0..n).map(|at| x[(at + n - 7) % n]).collect();
        for (k, (shifted, y)) in transform(&shifted).await.iter().zip(&y).enumerate() {
            let turn = C64::from_polar(1.0, -std::f64::consts::TAU * (k * 7 % n) as f64 / n as f64);
            assert!((shifted - y * turn).norm() < 1e-11, "{k}");
        }
        // An impulse has every frequency, a constant only one.
        let mut impulse = vec![C64::new(0.0, 0.0); n];
        impulse[0] = C64::new(1.0, 0.0);
        assert!(transform(&impulse).await.iter().all(|y| (y - 1.0).norm() < 1e-14));
        let constant = transform(&vec![C64::new(1.0, 0.0); n]).await;
        assert!((constant[0] - n as f64).norm() < 1e-10 && constant[1..].iter().all(|y| y.norm() < 1e-10));
    });
}

const NUMPY_RFFT: [(f64, f64); 4] = [
    (127.0, 0.0),
    (12.51632047059104, 79.24260336704938),
    (-31.157505640994227, 42.042134000237205),
    (-41.358814829596795, 12.808933613638352),
];
const NUMPY_FFT2: [(f64, f64); 6] = [
    (29.0, 0.0),
    (-7.0, 0.0),
    (-10.0, 8.660254037844386),
    (2.0, -1.7320508075688772),
    (-10.0, -8.660254037844386),
    (2.0, 1.7320508075688772),
];

/// `numpy.fft.rfft([1, 2, 4, 8, 16, 32, 64])` and `numpy.fft.fft2([[1, 2], [3, 5], [7, 11]])`, NumPy 2.
#[test]
fn numbers_of_numpy() {
    on_every_executor(async |device| {
        let x = device.upload(&[1.0f64, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0]).await.unwrap();
        let y = poisoned::<Complex<f64>>(device, 4).await;
        device.rfft(&x, &y).shape(&[7]).await.unwrap();
        let numpy = NUMPY_RFFT.map(|(re, im)| C64::new(re, im));
        assert_close(&device.download(&y).await.unwrap(), &numpy, "numpy.fft.rfft");
        let x = [1.0f64, 2.0, 3.0, 5.0, 7.0, 11.0].map(|re| C64::new(re, 0.0));
        let (x, y) = (device.upload(&x).await.unwrap(), poisoned::<Complex<f64>>(device, 6).await);
        device.fft(&x, &y).shape(&[3, 2]).await.unwrap();
        let numpy = NUMPY_FFT2.map(|(re, im)| C64::new(re, im));
        assert_close(&device.download(&y).await.unwrap(), &numpy, "numpy.fft.fft2");
    });
}

#[test]
fn what_is_refused() {
    on_every_executor(async |device| {
        let x = device.alloc::<Complex<f32>>(24).await.unwrap();
        let y = device.alloc::<Complex<f32>>(24).await.unwrap();
        let refused = |call: atomr_cuda_core::Call<atomr_cuda_cufft::Transform>, about: &str| {
            let error = call.submit().err().unwrap_or_else(|| panic!("{about} was not refused"));
            assert!(matches!(&error, GpuError::InvalidArgument { argument, .. } if argument == about), "{error}");
        };
        refused(device.fft(&x, &y), "shape");
        refused(device.fft(&x, &y).shape(&[2, 3, 2, 2]), "shape");
        refused(device.fft(&x, &y).shape(&[24, 0]), "shape");
        refused(device.fft(&x, &y).shape(&[24]).batch(0), "batch");
        refused(device.fft(&x, &y).shape(&[12]), "y");
        refused(device.fft(&x, &y).shape(&[12]).output(&[12], 1, 6).batch(2), "y");
        refused(device.fft_in_place(&x).shape(&[6]).batch(2).input(&[6], 2, 12), "layout");
        let error = device.fft(&x, &y).shape(&[25]).submit().err().unwrap();
        assert!(matches!(error, GpuError::ShapeMismatch { needed: 25, found: 24, .. }), "{error}");
        let error = device.fft(&x, &y).shape(&[1 << 40, 1 << 40]).submit().err().unwrap();
        assert!(matches!(error, GpuError::SizeOverflow { .. }), "{error}");
        let error = device.fft(&x, &x).shape(&[24]).submit().err().unwrap();
        assert!(matches!(error, GpuError::Aliased { .. }), "{error}");
    });
}

#[test]
fn plans_come_back_after_the_worker_died() {
    on_every_executor(async |device| {
        check_complex::<f32>(device, &[30], 2).await;
        let x: Vec<Complex<f32>> = random(&mut seeded(9), 60);
        let (dx, dy) = (device.upload(&x).await.unwrap(), device.alloc::<Complex<f32>>(60).await.unwrap());
        device.fft(&dx, &dy).shape(&[30]).batch(2).await.unwrap();
        let error = device.fault(Fault::Kill).await.unwrap_err();
        assert!(matches!(error, GpuError::ContextPoisoned { .. }), "{error}");
        let exact = each(&wide(&x), &[30], -1.0);
        assert_close(&device.download(&dy).await.unwrap(), &exact, "what was there");
        device.fill(&dy, Complex::new(0.0, 0.0)).await.unwrap();
        device.fft(&dx, &dy).shape(&[30]).batch(2).await.unwrap();
        assert_close(&device.download(&dy).await.unwrap(), &exact, "the next worker's");
    });
}
