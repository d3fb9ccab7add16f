/* C interface of the fused kernels. Raw pointers, 64-bit sizes, a status; nothing of torch or Python.
 *
 * A batch is B sets of samples. X has M rows of D features, contiguous. Which rows belong to which set:
 *   rows == NULL, ptr == NULL   set b has the rows b N .. (b + 1) N - 1
 *   rows == NULL, ptr != NULL   set b has the rows ptr[b] .. ptr[b + 1] - 1
 *   rows != NULL                set b has the rows rows[ptr[b]] .. rows[ptr[b + 1] - 1], each row at most once in all;
 *                               others are absent
 * `dtype` is that of every floating array.
 */
#ifndef UOTPOOL_H
#define UOTPOOL_H

#include <stdint.h>

#define UOTPOOL_ABI 8

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

/* The coefficients of a call, in this order. */
enum { UOTPOOL_ALPHA0 = 0, UOTPOOL_ALPHA1, UOTPOOL_ALPHA2, UOTPOOL_RHO, UOTPOOL_SCALE, UOTPOOL_COEFFICIENTS };

/* What the numbers of a coefficient are: there is none; doubles, fixed; or numbers in the dtype of the call, which
 * derivatives can be asked for: itself; raw, of log(1 + exp(raw)) + UOTPOOL_FLOOR; of exp(UOTPOOL_RATE raw) from
 * 1 / UOTPOOL_LIMIT to UOTPOOL_LIMIT, without a derivative beyond; or of UOTPOOL_RATE raw (the scale alone). */
enum {
    UOTPOOL_NONE = 0,
    UOTPOOL_FIXED = 1,
    UOTPOOL_IDENTITY = 2,
    UOTPOOL_SOFTPLUS = 3,
    UOTPOOL_EXP = 4,
    UOTPOOL_LINEAR = 5
};

#define UOTPOOL_FLOOR 1e-6
#define UOTPOOL_RATE 10.0
#define UOTPOOL_LIMIT 1e6

typedef struct uotpool_call {
    int64_t dtype;
    int64_t solver;        /* its code, see uotpool_solver */
    int64_t head;
    int64_t K, B, M, N, D;
    int64_t threads;
    int64_t p0_shared;     /* log_p0 is (D), one for all sets; else (B, D) */
    int64_t transform[UOTPOOL_COEFFICIENTS];
    int64_t length[UOTPOOL_COEFFICIENTS]; /* 1, the same for all steps, or K; of the scale 1, for all features, or D; 0
                                             without one. Bregman ADMM has a rho, Sinkhorn none. With a scale, the plan
                                             is that of scale X, and X itself is pooled */
    const void *X;         /* (M, D) */
    const int64_t *ptr;    /* (B + 1) */
    const int64_t *rows;   /* (ptr[B]) */
    const void *log_p0;    /* NULL: uniform */
    const void *log_q0;    /* (M); NULL: uniform in each set */
    const void *coefficient[UOTPOOL_COEFFICIENTS]; /* (length) each */
    const void *dout;      /* backward: derivative by the output, (B, D) or (M, D) */
    void *out;             /* forward: (B, D) pooled, or the plan (M, D) */
    void *dX;              /* backward, each of these NULL where not wanted: (M, D). A large set needs room for it in
                              scratch then */
    void *dlog_p0;         /* shape of log_p0 */
    void *dlog_q0;         /* (M) */
    void *dcoefficient[UOTPOOL_COEFFICIENTS]; /* by what is in `coefficient`; NULL of a fixed one */
} uotpool_call;

int uotpool_abi(void);

/* The name of the solver with this code, from 0 on; NULL: there is none. */
const char *uotpool_solver(int64_t code);

/* The best instruction set of this CPU that is built in is chosen at the first call. */
int uotpool_isa(void);
int uotpool_has_isa(int isa);
int uotpool_set_isa(int isa);

/* All of `out`, or of every wanted derivative, is written: zeros where a set is empty or a row absent. */
int uotpool_forward(const uotpool_call *call);
int uotpool_backward(const uotpool_call *call);

/* Largest scratch of one thread in bytes, for the sets of this call. Negative: minus a status. A float32 set whose
 * numbers are too far apart for it is solved in double, with as much again and more (widen.cpp). */
int64_t uotpool_scratch(const uotpool_call *call, int backward);

/* Rows grouped by set in their order, from the set of each row (any order) and which rows are there (one byte
 * each, or NULL). Fills ptr (B + 1) and rows (M; zeros from ptr[B] on). index NULL: row i is of set i / N. */
int uotpool_group(const int64_t *index, const uint8_t *present, int64_t M, int64_t B, int64_t N, int64_t *ptr,
                  int64_t *rows);

#ifdef __cplusplus
}
#endif
#endif
