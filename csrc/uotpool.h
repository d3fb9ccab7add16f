/* C interface of the fused kernels. Raw pointers, 64-bit sizes, a status; nothing of torch or Python.
 *
 * A batch is B sets ("bags") of samples. X has M rows of D features, contiguous. Which rows belong to which bag:
 *   rows == NULL, ptr == NULL   bag b has the rows b N .. (b + 1) N - 1
 *   rows == NULL, ptr != NULL   bag b has the rows ptr[b] .. ptr[b + 1] - 1
 *   rows != NULL                bag b has the rows rows[ptr[b]] .. rows[ptr[b + 1] - 1], each row at most once in all;
 *                               others are absent
 * `dtype` is that of every floating array.
 */
#ifndef UOTPOOL_H
#define UOTPOOL_H

#include <stdint.h>

#define UOTPOOL_ABI 6

#ifdef __cplusplus
extern "C" {
#endif

enum { UOTPOOL_FLOAT32 = 0, UOTPOOL_FLOAT64 = 1 };
enum { UOTPOOL_POOLED = 0, UOTPOOL_PLAN = 1 }; /* what comes out */
enum { UOTPOOL_BASELINE = 0, UOTPOOL_AVX2 = 1, UOTPOOL_AVX512 = 2 };

enum {
    UOTPOOL_OK = 0,
    UOTPOOL_BAD_ARGUMENT = 1, /* an unknown code, a negative or too large size, ptr or rows out of range */
    UOTPOOL_NULL_POINTER = 2,
    UOTPOOL_MISALIGNED = 3,
    UOTPOOL_NO_MEMORY = 4,
    UOTPOOL_NO_SUCH_ISA = 5 /* not built, or not of this CPU */
};

/* What the parameters of a layer are to its weights and scales: the weight itself; log(1 + exp(raw)) + UOTPOOL_FLOOR;
 * exp(UOTPOOL_RATE raw) from 1 / UOTPOOL_LOG_LIMIT to UOTPOOL_LOG_LIMIT, without a derivative beyond; or UOTPOOL_RATE
 * raw. */
enum { UOTPOOL_VALUE = 0, UOTPOOL_SOFTPLUS = 1, UOTPOOL_LOG = 2, UOTPOOL_TIMES_RATE = 3 };

#define UOTPOOL_FLOOR 1e-6
#define UOTPOOL_RATE 10.0
#define UOTPOOL_LOG_LIMIT 1e6

typedef struct uotpool_call {
    int64_t dtype;
    int64_t solver;        /* its code, see uotpool_solver */
    int64_t head;
    int64_t K, B, M, N, D;
    int64_t threads;
    int64_t p0_shared;     /* log_p0 is (D), one for all bags; else (B, D) */
    int64_t raw_length[4]; /* 0 for all: the weights are in `weights`; else each is made of its `raw`: 1, the same for
                              all modules, or K. 0 beyond the rows of `weights` */
    int64_t raw_form[4];   /* how a weight is made of its `raw`: UOTPOOL_VALUE, _SOFTPLUS or _LOG; 0 without one */
    int64_t scale_length;  /* 0: the plan is that of X; else of scale X, and X itself is pooled: 1, a scale for all
                              features, or D */
    int64_t scale_form;    /* how a scale is made of what is in `scale`: UOTPOOL_VALUE or UOTPOOL_TIMES_RATE */
    const void *X;         /* (M, D) */
    const int64_t *ptr;    /* (B + 1) */
    const int64_t *rows;   /* (ptr[B]) */
    const void *log_p0;    /* NULL: uniform */
    const void *log_q0;    /* (M); NULL: uniform in each bag */
    const void *weights;   /* (3, K): alpha0, alpha1, alpha2; (4, K) with rho for Bregman ADMM. NULL with raw */
    const void *scale;     /* (scale_length), of any sign. NULL without scale_length */
    const void *dout;      /* backward: derivative by the output, (B, D) or (M, D) */
    void *out;             /* forward: (B, D) pooled, or the plan (M, D) */
    void *dX;              /* backward, each of these NULL where not wanted: (M, D). A large bag needs room for it in
                              scratch then */
    void *dlog_p0;         /* shape of log_p0 */
    void *dlog_q0;         /* (M) */
    void *dweights;        /* shape of weights. NULL with raw */
    void *dscale;          /* by what is in scale, in its shape */
    const void *raw[4];    /* (raw_length) each, as many as `weights` has rows; NULL without raw_length */
    void *draw[4];         /* shape of raw */
} uotpool_call;

/* Local pooling of images by Sinkhorn with uniform priors. Output (i, j) is the pooled output of one bag: its samples
 * are the positions of X with h in i stride_h - padding_h + (0 .. kernel_h - 1) and likewise w, as far as they are in
 * the image, its features the C channels. A window with no position gives zeros. */
typedef struct uotpool_window_call {
    int64_t dtype, channels_last; /* 0: X is (B, C, H, W) in memory, out (B, C, out_h, out_w); 1: C is last */
    int64_t K, B, C, H, W;
    int64_t kernel_h, kernel_w, stride_h, stride_w, padding_h, padding_w, out_h, out_w;
    int64_t threads;
    int64_t scale_length;  /* as above: 0, 1 or C */
    const void *X;
    const void *weights;   /* (3, K): alpha0, alpha1, alpha2 */
    const void *scale;     /* (scale_length) */
    const void *dout;      /* backward: as out */
    void *out;             /* forward */
    void *dX;              /* backward, each of these NULL where not wanted: as X */
    void *dweights;        /* (3, K) */
    void *dscale;          /* (scale_length) */
} uotpool_window_call;

int uotpool_abi(void);

/* The name of the solver with this code, from 0 on; NULL: there is none. */
const char *uotpool_solver(int64_t code);

/* The best instruction set of this CPU that is built in is chosen at the first call. */
int uotpool_isa(void);
int uotpool_has_isa(int isa);
int uotpool_set_isa(int isa);

/* All of `out`, or of every wanted derivative, is written: zeros where a bag is empty or a row absent. */
int uotpool_forward(const uotpool_call *call);
int uotpool_backward(const uotpool_call *call);

/* The same for the bags begin .. end - 1 alone, so that a caller can cut a long call into pieces and stop in between.
 * Pieces that follow each other from 0 to B give the bits of one call: what all bags share is summed over the pieces in
 * order, dlog_p0 in place, the others by `carry`, numbers that belong to the caller: 3 K, or 4 K with rho, for the
 * weights, and scale_length (NULL: as in one call, begin = 0). The piece with begin = 0 starts the sums, and writes the zeros of
 * absent rows. */
int uotpool_forward_bags(const uotpool_call *call, int64_t begin, int64_t end);
int uotpool_backward_bags(const uotpool_call *call, int64_t begin, int64_t end, double *carry);

/* All of `out`, or of every wanted derivative, is written. */
int uotpool_window_forward(const uotpool_window_call *call);
int uotpool_window_backward(const uotpool_window_call *call);

/* The same for the images begin .. end - 1, as above; `carry` has 3 K + scale_length numbers. */
int uotpool_window_forward_images(const uotpool_window_call *call, int64_t begin, int64_t end);
int uotpool_window_backward_images(const uotpool_window_call *call, int64_t begin, int64_t end, double *carry);

/* Largest scratch of one thread in bytes, for the bags of this call. Negative: minus a status. A float32 bag whose
 * numbers are too far apart for it is solved in double, with as much again and more (widen.h). */
int64_t uotpool_scratch(const uotpool_call *call, int backward);

/* Scratch of 256 KiB and more is kept for the next call, up to a limit of bytes in all (128 MiB until another is set).
 * Free what is kept and not in use: how many bytes that was. How many are kept. Set the limit, and free what is above
 * it; negative: leave it. It returns the limit. All of them may be called at any time from any thread. */
int64_t uotpool_free_scratch(void);
int64_t uotpool_kept_scratch(void);
int64_t uotpool_limit_scratch(int64_t bytes);

/* Rows grouped by bag in their order, from the bag of each row (any order) and which rows are there (one byte
 * each, or NULL). Fills ptr (B + 1) and rows (M; zeros from ptr[B] on). index NULL: row i is of bag i / N. */
int uotpool_group(const int64_t *index, const uint8_t *present, int64_t M, int64_t B, int64_t N, int64_t *ptr,
                  int64_t *rows);

#ifdef __cplusplus
}
#endif
#endif
