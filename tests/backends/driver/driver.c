/* Checks a build of the kernels without torch or Python: driver LIBRARY REFERENCE.
 *
 * Every problem of the reference (make_reference.py writes it) is solved, forward and backward, in both precisions, on
 * one thread and on two, with every instruction set that the CPU has, and compared with the stored values. Outputs hold
 * NaN before, so that what is not written is an error. This runs where torch does not, as in an emulator. */
#include <dlfcn.h>
#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../../csrc/uotpool.h"

#define MOST_ARRAYS 24

typedef struct {
    char name[24];
    enum { IN, FIXED, ROWS, WANT } kind; /* FIXED: doubles in both precisions */
    int64_t length;
    double tolerance[2]; /* of float32 and of float64 */
    double *values;      /* as they are in the file */
    void *typed;         /* for the call: float, double or int64_t */
} array;

typedef struct {
    char name[64];
    uotpool_call call;
    array arrays[MOST_ARRAYS];
    int count;
} problem;

typedef struct {
    const char *name;
    size_t offset; /* in the call */
} field;

#define FIELD(name) {#name, offsetof(uotpool_call, name)}
#define OF_SLOT(array, i, name) {#array "_" #name, offsetof(uotpool_call, array[i])}
#define OF_EACH_SLOT(array)                                                                                            \
    OF_SLOT(array, UOTPOOL_ALPHA0, alpha0), OF_SLOT(array, UOTPOOL_ALPHA1, alpha1),                                    \
        OF_SLOT(array, UOTPOOL_ALPHA2, alpha2), OF_SLOT(array, UOTPOOL_RHO, rho), OF_SLOT(array, UOTPOOL_SCALE, scale)

static const field FIELDS[] = {
    FIELD(K), FIELD(B), FIELD(X), FIELD(dout), FIELD(out), FIELD(dX), FIELD(head), FIELD(M), FIELD(N), FIELD(D),
    FIELD(p0_shared), FIELD(ptr), FIELD(log_p0), FIELD(log_q0), FIELD(dlog_p0), FIELD(dlog_q0),
    OF_EACH_SLOT(transform), OF_EACH_SLOT(length), OF_EACH_SLOT(coefficient), OF_EACH_SLOT(dcoefficient),
};

static int (*forward)(const uotpool_call *), (*backward)(const uotpool_call *);
static int (*abi)(void), (*has_isa)(int), (*set_isa)(int);
static const char *(*solver_name)(int64_t);
static double worst; /* largest error, as a part of its tolerance */
static const char *const ISAS[] = {"baseline", "avx2", "avx512"};

static void fail(const char *what, const char *name) {
    fprintf(stderr, "driver: %s: %s\n", what, name);
    exit(1);
}

static void *symbol(void *library, const char *name) {
    void *found = dlsym(library, name);
    if (!found)
        fail("the library lacks", name);
    return found;
}

static void load(const char *path) {
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        fail("cannot load", dlerror());
    *(void **)&abi = symbol(library, "uotpool_abi");
    *(void **)&has_isa = symbol(library, "uotpool_has_isa");
    *(void **)&set_isa = symbol(library, "uotpool_set_isa");
    *(void **)&solver_name = symbol(library, "uotpool_solver");
    *(void **)&forward = symbol(library, "uotpool_forward");
    *(void **)&backward = symbol(library, "uotpool_backward");
    if (abi() != UOTPOOL_ABI)
        fail("another interface version than that of uotpool.h", path);
}

/* The place of a field in the call of the problem. */
static void *place(problem *p, const char *name) {
    for (size_t i = 0; i < sizeof FIELDS / sizeof *FIELDS; i++)
        if (!strcmp(FIELDS[i].name, name))
            return (char *)&p->call + FIELDS[i].offset;
    fail("no such field", name);
    return NULL;
}

static void read_values(FILE *file, array *a) {
    a->values = malloc((size_t)(a->length + 1) * sizeof(double));
    a->typed = malloc((size_t)(a->length + 1) * sizeof(double));
    if (!a->values || !a->typed)
        fail("no memory for", a->name);
    for (int64_t i = 0; i < a->length; i++)
        if (fscanf(file, "%lf", &a->values[i]) != 1)
            fail("too few numbers for", a->name);
}

/* Reads the next problem. Returns 0 at the end of the file. */
static int read_problem(FILE *file, problem *p) {
    char word[24], name[24]; /* the longest is dcoefficient_alpha0 */
    memset(p, 0, sizeof *p);
    if (fscanf(file, " case %63[^\n]", p->name) != 1)
        return 0;
    while (fscanf(file, "%23s", word) == 1 && strcmp(word, "end")) {
        if (fscanf(file, "%23s", name) != 1)
            fail("nothing after", word);
        if (!strcmp(word, "solver")) {
            const char *known;
            while ((known = solver_name(p->call.solver)) && strcmp(known, name))
                p->call.solver++;
            if (!known)
                fail("no such solver in the library", name);
        } else if (!strcmp(word, "size")) {
            if (fscanf(file, "%" SCNd64, (int64_t *)place(p, name)) != 1)
                fail("no number after", name);
        } else {
            if (p->count == MOST_ARRAYS)
                fail("too many arrays in", p->name);
            array *a = &p->arrays[p->count++];
            strcpy(a->name, name);
            a->kind = !strcmp(word, "want") ? WANT : !strcmp(word, "rows") ? ROWS : !strcmp(word, "fixed") ? FIXED : IN;
            if (fscanf(file, "%" SCNd64, &a->length) != 1)
                fail("no length after", name);
            if (a->kind == WANT && fscanf(file, "%lf %lf", &a->tolerance[0], &a->tolerance[1]) != 2)
                fail("no tolerances after", name);
            read_values(file, a);
            *(void **)place(p, name) = a->typed;
        }
    }
    return 1;
}

/* Fills what the call reads and poisons what it writes. */
static void prepare(problem *p, int dtype) {
    for (int k = 0; k < p->count; k++) {
        array *a = &p->arrays[k];
        for (int64_t i = 0; i < a->length; i++) {
            double value = a->kind == WANT ? NAN : a->values[i];
            if (a->kind == ROWS)
                ((int64_t *)a->typed)[i] = (int64_t)value;
            else if (dtype == UOTPOOL_FLOAT32 && a->kind != FIXED)
                ((float *)a->typed)[i] = (float)value;
            else
                ((double *)a->typed)[i] = value;
        }
    }
    p->call.dtype = dtype;
}

/* Compares every result with the stored one. */
static void compare(const problem *p, int dtype, const char *isa) {
    for (int k = 0; k < p->count; k++) {
        const array *a = &p->arrays[k];
        if (a->kind != WANT)
            continue;
        for (int64_t i = 0; i < a->length; i++) {
            double got = dtype == UOTPOOL_FLOAT32 ? ((float *)a->typed)[i] : ((double *)a->typed)[i];
            double part = fabs(got - a->values[i]) / a->tolerance[dtype];
            if (!(part <= 1.0)) {
                fprintf(stderr, "driver: %s, %s, %s: %s[%" PRId64 "] is %.17g, expected %.17g: %.3g times the tolerance\n",
                        p->name, dtype == UOTPOOL_FLOAT32 ? "float32" : "float64", isa, a->name, i, got, a->values[i],
                        part);
                exit(1);
            }
            worst = fmax(worst, part);
        }
    }
}

static void solve(problem *p) {
    int status = forward(&p->call);
    if (!status)
        status = backward(&p->call);
    if (status)
        fail("a status that is not 0", p->name);
}

int main(int count, char **words) {
    if (count != 3) {
        fprintf(stderr, "usage: driver LIBRARY REFERENCE\n");
        return 2;
    }
    load(words[1]);
    FILE *file = fopen(words[2], "r");
    if (!file)
        fail("cannot read", words[2]);
    int problems = 0;
    problem p;
    while (read_problem(file, &p)) {
        problems++;
        for (int isa = UOTPOOL_BASELINE; isa <= UOTPOOL_AVX512; isa++) {
            if (!has_isa(isa))
                continue;
            if (set_isa(isa))
                fail("cannot use", ISAS[isa]);
            for (int dtype = UOTPOOL_FLOAT32; dtype <= UOTPOOL_FLOAT64; dtype++)
                for (int threads = 1; threads <= 2; threads++) {
                    p.call.threads = threads;
                    prepare(&p, dtype);
                    solve(&p);
                    compare(&p, dtype, ISAS[isa]);
                }
        }
        for (int k = 0; k < p.count; k++) {
            free(p.arrays[k].values);
            free(p.arrays[k].typed);
        }
    }
    fclose(file);
    if (!problems)
        fail("no problem in", words[2]);
    printf("%d problems, float32 and float64:", problems);
    for (int isa = UOTPOOL_BASELINE; isa <= UOTPOOL_AVX512; isa++)
        if (has_isa(isa))
            printf(" %s", ISAS[isa]);
    printf("; largest error %.2f of its tolerance\n", worst);
    return 0;
}
