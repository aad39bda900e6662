/* A layer of the encoder on a CPU with AVX-512. Rows go through it in blocks that stay in the cache,
   and each number of the result depends on its own sequence alone, to the last bit.

   T tokens of all sequences in a row   N sequences   L tokens of one   R rows that are kept
   D hidden size   H heads   K head size (D = H * K)   U feed-forward size

   Products come in three kinds: of float32, of bfloat16 in pairs, of 8 bits in fours. In each of them
   a step reads 4 bytes of a row and 4 bytes for each of 32 columns of the weights, so one loop serves
   all. Of 8 bits, a row has a scale of its own, and so has a column of the weights; rows are stored as
   0 .. 255 around 128, since the instruction wants one side without a sign. */

#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#define COLUMNS 32 /* of a panel of weights: two registers */
#define ROWS 8     /* of a tile: its 16 sums stay in registers, as do 8 numbers of the rows */
#define BLOCK 32   /* rows that go through a layer together: 24 to 96 are much alike */
#define FEW 128    /* rows up to which threads divide the weights rather than the rows */
#define INLINE static inline __attribute__((always_inline))
#ifdef __clang__
#define ALIKE static __attribute__((noinline))
#else /* one copy of a function, the same for all who call it, so that its sums are, too */
#define ALIKE static __attribute__((noipa))
#endif

int omp_get_thread_num(void); /* torch has loaded the library; its header may not be there */

typedef enum { FP32, BF16, INT8 } Kind;
typedef enum { PLAIN, GELU_ERF, GELU_TANH } Ending;

typedef struct {
    const uint32_t *weight; /* (out / 32, in / G, 32, G), of G numbers in 4 bytes */
    const float *bias;      /* (out,) */
    const float *scales;    /* (out,) of INT8, as are the next */
    const int32_t *middles; /* (out,) what the 128s of a row add up to */
    int64_t in, out;
} Linear;

typedef struct {
    Linear qkv, out, up, down;
    const float *attention_norm, *attention_norm_bias, *ffn_norm, *ffn_norm_bias; /* (D,) */
    float eps;
    int32_t kind, ending, num_heads;
} Layer;

typedef struct {
    const float *x;        /* (T, D) */
    const int64_t *bounds; /* (N + 1,) */
    const int64_t *kept;   /* (R,), or null where all rows are */
    float *result;         /* (R, D) */
    float *qkv;            /* (T, 3 D) */
    float *mixed;          /* (T, D) room for what attention makes */
    char *room;            /* as room_of says */
    int64_t num_rows, num_sequences, num_kept, num_threads;
} Call;

/* Bytes of Layer and Call: whoever describes them otherwise must not call. */
int32_t layer_bytes(void) { return sizeof(Layer); }
int32_t call_bytes(void) { return sizeof(Call); }

/* Which kinds this processor can do, as bits. */
int32_t kinds(void) {
    int32_t found = 1 << FP32;
#ifdef __AVX512BF16__
    found |= 1 << BF16;
#endif
#ifdef __AVX512VNNI__
    found |= 1 << INT8;
#endif
    return found;
}

/* Functions of one number; the compiler makes them functions of sixteen. */

INLINE float power_of_e(float x) {
    x = x < -87.0f ? -87.0f : x > 88.0f ? 88.0f : x;
    float n = rintf(x * 1.44269504f);
    float r = fmaf(n, 2.12194440e-4f, fmaf(n, -0.693359375f, x)); /* ln 2 in two parts */
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    uint32_t bits = (uint32_t)((int32_t)n + 127) << 23;
    float two_to_n;
    memcpy(&two_to_n, &bits, sizeof bits);
    return p * two_to_n;
}

INLINE float gelu_erf(float x) { /* Abramowitz and Stegun, 7.1.26: erf within 1.5e-7 */
    float z = fabsf(x) * 0.70710678f;
    float t = 1.0f / (1.0f + 0.3275911f * z);
    float p = 1.061405429f;
    p = p * t - 1.453152027f;
    p = p * t + 1.421413741f;
    p = p * t - 0.284496736f;
    p = p * t + 0.254829592f;
    float tail = p * t * power_of_e(-z * z); /* 1 - erf(z) */
    return x > 0 ? x - 0.5f * x * tail : 0.5f * x * tail;
}

INLINE float gelu_tanh(float x) {
    float y = 1.5957691216f * (x + 0.044715f * x * x * x); /* twice what tanh is taken of */
    return x - x / (power_of_e(y) + 1.0f);
}

/* Products. */

INLINE __m512i add_product(Kind kind, __m512i sum, __m512i a, __m512i w) {
#ifdef __AVX512VNNI__
    if (kind == INT8) return _mm512_dpbusd_epi32(sum, a, w);
#endif
#ifdef __AVX512BF16__
    if (kind == BF16) return (__m512i)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)w);
#endif
    return (__m512i)_mm512_fmadd_ps((__m512)a, (__m512)w, (__m512)sum);
}

/* Sums of `rows` rows of a and the 32 columns of one panel w. */
INLINE void tile(Kind kind, int rows, const uint32_t *a, int64_t stride, const uint32_t *w,
                 int64_t steps, __m512i sums[ROWS][2]) {
    __m512i s[ROWS][2];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) s[r][0] = s[r][1] = _mm512_setzero_si512();
    for (int64_t step = 0; step < steps; step++) {
        __m512i w0 = _mm512_loadu_si512(w + step * COLUMNS);
        __m512i w1 = _mm512_loadu_si512(w + step * COLUMNS + 16);
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            __m512i one = _mm512_set1_epi32((int32_t)a[r * stride + step]);
            s[r][0] = add_product(kind, s[r][0], one, w0);
            s[r][1] = add_product(kind, s[r][1], one, w1);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) sums[r][0] = s[r][0], sums[r][1] = s[r][1];
}

/* The same for a number of rows that the compiler does not know: it stays in registers if it does. */
INLINE void tile_of(Kind kind, int rows, const uint32_t *a, int64_t stride, const uint32_t *w,
                    int64_t steps, __m512i sums[ROWS][2]) {
    switch (rows) {
        case 1: tile(kind, 1, a, stride, w, steps, sums); break;
        case 2: tile(kind, 2, a, stride, w, steps, sums); break;
        case 3: tile(kind, 3, a, stride, w, steps, sums); break;
        case 4: tile(kind, 4, a, stride, w, steps, sums); break;
        case 5: tile(kind, 5, a, stride, w, steps, sums); break;
        case 6: tile(kind, 6, a, stride, w, steps, sums); break;
        case 7: tile(kind, 7, a, stride, w, steps, sums); break;
        case 8: tile(kind, 8, a, stride, w, steps, sums); break;
    }
}

static void tile_fp32(int rows, const uint32_t *a, int64_t stride, const uint32_t *w,
                      int64_t steps, __m512i sums[ROWS][2]) {
    tile_of(FP32, rows, a, stride, w, steps, sums);
}

static void tile_bf16(int rows, const uint32_t *a, int64_t stride, const uint32_t *w,
                      int64_t steps, __m512i sums[ROWS][2]) {
    tile_of(BF16, rows, a, stride, w, steps, sums);
}

static void tile_int8(int rows, const uint32_t *a, int64_t stride, const uint32_t *w,
                      int64_t steps, __m512i sums[ROWS][2]) {
    tile_of(INT8, rows, a, stride, w, steps, sums);
}

typedef void (*Tile)(int, const uint32_t *, int64_t, const uint32_t *, int64_t, __m512i[ROWS][2]);
static const Tile TILES[] = {tile_fp32, tile_bf16, tile_int8};
static const int NUMBERS_IN_4_BYTES[] = {1, 2, 4};

/* A row as products read it, and its scale where it has one. */
static void lay_out(Kind kind, const float *x, int64_t size, uint32_t *to, float *scale) {
    if (kind == INT8) {
        __m512 most = _mm512_set1_ps(1e-30f); /* a row of zeros has a scale, too */
        __mmask16 is_nan = 0;                 /* which a maximum loses, as do whole numbers */
        for (int64_t n = 0; n < size; n += 16) {
            __m512 some = _mm512_loadu_ps(x + n);
            is_nan |= _mm512_cmp_ps_mask(some, some, _CMP_UNORD_Q);
            most = _mm512_max_ps(most, _mm512_abs_ps(some));
        }
        float peak = _mm512_reduce_max_ps(most), inverse = 127.0f / peak;
        uint8_t *bytes = (uint8_t *)to;
        for (int64_t n = 0; n < size; n++) bytes[n] = (uint8_t)(int32_t)(x[n] * inverse + 128.5f);
        *scale = is_nan ? NAN : peak / 127.0f;
        return;
    }
#ifdef __AVX512BF16__
    if (kind == BF16) {
        for (int64_t n = 0; n < size; n += 32) {
            __m512 low = _mm512_loadu_ps(x + n), high = _mm512_loadu_ps(x + n + 16);
            _mm512_storeu_si512((uint16_t *)to + n, (__m512i)_mm512_cvtne2ps_pbh(high, low));
        }
        return;
    }
#endif
    memcpy(to, x, size * sizeof(float));
}

INLINE __m512 unscale(__m512i sums, const Linear *l, int64_t column, float scale) {
    __m512i exact = _mm512_sub_epi32(sums, _mm512_loadu_si512(l->middles + column));
    __m512 scales = _mm512_mul_ps(_mm512_set1_ps(scale), _mm512_loadu_ps(l->scales + column));
    return _mm512_mul_ps(_mm512_cvtepi32_ps(exact), scales);
}

/* Columns from .. to of y (rows, out) = ending(a weight + bias), of rows that are laid out. */
ALIKE void linear(Kind kind, Ending ending, const Linear *l, int64_t num_rows, const uint32_t *a,
                   const float *scales, float *y, int64_t from, int64_t to) {
    int64_t steps = l->in / NUMBERS_IN_4_BYTES[kind], num_tiles = (num_rows + ROWS - 1) / ROWS;
    for (int64_t column = from; column < to; column += COLUMNS) {
        const uint32_t *w = l->weight + column * steps;
        __m512 bias0 = _mm512_loadu_ps(l->bias + column);
        __m512 bias1 = _mm512_loadu_ps(l->bias + column + 16);
        for (int64_t t = 0; t < num_tiles; t++) {
            int64_t first = t * num_rows / num_tiles, last = (t + 1) * num_rows / num_tiles;
            __m512i sums[ROWS][2];
            TILES[kind](last - first, a + first * steps, steps, w, steps, sums);
            for (int64_t row = first; row < last; row++) {
                __m512 s0 = (__m512)sums[row - first][0], s1 = (__m512)sums[row - first][1];
                if (kind == INT8) {
                    s0 = unscale((__m512i)s0, l, column, scales[row]);
                    s1 = unscale((__m512i)s1, l, column + 16, scales[row]);
                }
                float *made = y + row * l->out + column;
                _mm512_storeu_ps(made, _mm512_add_ps(s0, bias0));
                _mm512_storeu_ps(made + 16, _mm512_add_ps(s1, bias1));
                if (ending == GELU_ERF)
                    for (int c = 0; c < COLUMNS; c++) made[c] = gelu_erf(made[c]);
                if (ending == GELU_TANH)
                    for (int c = 0; c < COLUMNS; c++) made[c] = gelu_tanh(made[c]);
            }
        }
    }
}

/* Rows. */

/* norm(residual + y), in the place of y. */
ALIKE void add_norm(const float *residual, float *y, const float *weight, const float *bias,
                     float eps, int64_t size) {
    float sum = 0, squares = 0;
    for (int64_t n = 0; n < size; n++) sum += y[n] += residual[n];
    float mean = sum / size;
    for (int64_t n = 0; n < size; n++) squares += (y[n] - mean) * (y[n] - mean);
    float inverse = 1.0f / sqrtf(squares / size + eps);
    for (int64_t n = 0; n < size; n++) y[n] = (y[n] - mean) * inverse * weight[n] + bias[n];
}

ALIKE void softmax(float *scores, int64_t size) {
    __m512 most = _mm512_set1_ps(-INFINITY);
    for (int64_t n = 0; n < size; n += 16) {
        __mmask16 is_inside = size - n < 16 ? (1 << (size - n)) - 1 : 0xffff;
        most = _mm512_mask_max_ps(most, is_inside, most, _mm512_maskz_loadu_ps(is_inside, scores + n));
    }
    float peak = _mm512_reduce_max_ps(most), sum = 0;
    for (int64_t n = 0; n < size; n++) sum += scores[n] = power_of_e(scores[n] - peak);
    float inverse = 1.0f / sum;
    for (int64_t n = 0; n < size; n++) scores[n] *= inverse;
}

static int64_t fill_up(int64_t length) { return (length + COLUMNS - 1) / COLUMNS * COLUMNS; }

/* A sequence's keys, scaled, (filled up / 32, K, 32), and its values (K / 32, L, 32): as weights are,
   so that both products of attention are tiles, too. */
static void lay_out_sequence(const float *qkv, int64_t length, int64_t size, int64_t head_size,
                             float *keys, float *values) {
    float scale = 1.0f / sqrtf((float)head_size);
    for (int64_t t = 0; t < fill_up(length); t++) {
        const float *key = qkv + t * 3 * size + size, *value = key + size;
        float *to = keys + t / COLUMNS * COLUMNS * head_size + t % COLUMNS;
        for (int64_t k = 0; k < head_size; k++) to[k * COLUMNS] = t < length ? key[k] * scale : 0;
        for (int64_t k = 0; k < head_size && t < length; k += COLUMNS)
            memcpy(values + k * length + t * COLUMNS, value + k, COLUMNS * sizeof(float));
    }
}

INLINE void store(__m512i sums[ROWS][2], int64_t rows, float *to, int64_t stride) {
    for (int64_t r = 0; r < rows; r++) {
        _mm512_storeu_si512(to + r * stride, sums[r][0]);
        _mm512_storeu_si512(to + r * stride + 16, sums[r][1]);
    }
}

/* One head of one sequence: rows of 3 D numbers -> K columns of rows of D numbers. */
static void attend(const float *qkv, int64_t length, int64_t size, int64_t head_size,
                   float *mixed, float *room) {
    int64_t filled = fill_up(length), num_tiles = (length + ROWS - 1) / ROWS;
    float *keys = room, *values = keys + filled * head_size;
    float *scores = values + length * head_size; /* (ROWS, filled) */
    lay_out_sequence(qkv, length, size, head_size, keys, values);
    for (int64_t t = 0; t < num_tiles; t++) {
        int64_t first = t * length / num_tiles, rows = (t + 1) * length / num_tiles - first;
        const uint32_t *queries = (const uint32_t *)(qkv + first * 3 * size);
        __m512i sums[ROWS][2];
        for (int64_t column = 0; column < filled; column += COLUMNS) {
            const uint32_t *panel = (const uint32_t *)(keys + column * head_size);
            tile_fp32(rows, queries, 3 * size, panel, head_size, sums);
            store(sums, rows, scores + column, filled);
        }
        for (int64_t r = 0; r < rows; r++) softmax(scores + r * filled, length);
        for (int64_t k = 0; k < head_size; k += COLUMNS) {
            const uint32_t *panel = (const uint32_t *)(values + k * length);
            tile_fp32(rows, (const uint32_t *)scores, filled, panel, length, sums);
            store(sums, rows, mixed + first * size + k, size);
        }
    }
}

/* The layer: rows are laid out, multiplied, normed. Many rows are divided among the threads, block by
   block. Few rows are read by all of them, and the columns divided: a short text waits for the
   weights to come from memory, and so each comes to one core alone. */

typedef struct {
    uint32_t *laid; /* (BLOCK or FEW, the larger of D and U), a thread's own, as are the next two */
    float *scales;  /* (BLOCK or FEW,) */
    float *middle;  /* (BLOCK or FEW, D) */
    float *wide;    /* (BLOCK, U), its own; or (FEW, U), of all threads, as is the next */
    float *added;   /* (FEW, D) */
} Room;

static int64_t widest(const Layer *l) { return l->up.out > l->up.in ? l->up.out : l->up.in; }

static Room own_room(const Layer *l, char *room) {
    float *scales = (float *)room + BLOCK * widest(l), *middle = scales + BLOCK;
    return (Room){(uint32_t *)room, scales, middle, middle + BLOCK * l->out.out, NULL};
}

static Room shared_room(const Layer *l, char *room, char *shared) {
    float *scales = (float *)room + FEW * widest(l), *wide = (float *)shared;
    return (Room){(uint32_t *)room, scales, scales + FEW, wide, wide + FEW * l->up.out};
}

/* Bytes of the room, which begins with `each` bytes for each thread and ends with what they share;
   -1 where bounds or kept rows do not fit the rows. */
int64_t room_of(const Layer *l, const Call *c, int64_t *each) {
    int64_t longest = 0, size = l->out.out, wide = l->up.out, head_size = size / l->num_heads;
    if (c->bounds[0] != 0 || c->bounds[c->num_sequences] != c->num_rows) return -1;
    for (int64_t n = 0; n < c->num_sequences; n++) {
        int64_t length = c->bounds[n + 1] - c->bounds[n];
        if (length < 0) return -1;
        if (length > longest) longest = length;
    }
    for (int64_t n = 0; c->kept && n < c->num_kept; n++)
        if (c->kept[n] < 0 || c->kept[n] >= c->num_rows) return -1;
    int64_t attending = fill_up(longest) * (2 * head_size + ROWS);
    int64_t passing = BLOCK * (widest(l) + wide + size + 1);
    int64_t sharing = FEW * (widest(l) + size + 1);
    int64_t numbers = passing > sharing ? passing : sharing;
    numbers = attending > numbers ? attending : numbers;
    *each = (numbers * sizeof(float) + 63) / 64 * 64;
    return *each * c->num_threads + FEW * (size + wide) * sizeof(float);
}

static void lay_out_rows(Kind kind, const float *x, int64_t size, const int64_t *kept,
                         int64_t first, int64_t rows, Room room) {
    int64_t steps = size / NUMBERS_IN_4_BYTES[kind];
    for (int64_t r = 0; r < rows; r++) {
        int64_t row = kept ? kept[first + r] : first + r;
        lay_out(kind, x + row * size, size, room.laid + r * steps, room.scales + r);
    }
}

static void norm_attended(const Layer *l, const Call *c, int64_t number, float *middle) {
    int64_t size = l->out.out, row = c->kept ? c->kept[number] : number;
    add_norm(c->x + row * size, middle, l->attention_norm, l->attention_norm_bias, l->eps, size);
}

static void norm_result(const Layer *l, const Call *c, int64_t number, const float *middle) {
    int64_t size = l->out.out;
    float *y = c->result + number * size;
    add_norm(middle, y, l->ffn_norm, l->ffn_norm_bias, l->eps, size);
}

/* A block of rows, by one thread. */

static void project(const Layer *l, const Call *c, int64_t first, int64_t rows, Room room) {
    int64_t size = l->qkv.in;
    float *qkv = c->qkv + first * 3 * size;
    lay_out_rows(l->kind, c->x, size, NULL, first, rows, room);
    linear(l->kind, PLAIN, &l->qkv, rows, room.laid, room.scales, qkv, 0, l->qkv.out);
}

static void finish(const Layer *l, const Call *c, int64_t first, int64_t rows, Room room) {
    int64_t size = l->out.out, wide = l->up.out;
    float *y = c->result + first * size;
    lay_out_rows(l->kind, c->mixed, size, c->kept, first, rows, room);
    linear(l->kind, PLAIN, &l->out, rows, room.laid, room.scales, room.middle, 0, size);
    for (int64_t r = 0; r < rows; r++) norm_attended(l, c, first + r, room.middle + r * size);
    lay_out_rows(l->kind, room.middle, size, NULL, 0, rows, room);
    linear(l->kind, l->ending, &l->up, rows, room.laid, room.scales, room.wide, 0, wide);
    lay_out_rows(l->kind, room.wide, wide, NULL, 0, rows, room);
    linear(l->kind, PLAIN, &l->down, rows, room.laid, room.scales, y, 0, size);
    for (int64_t r = 0; r < rows; r++) norm_result(l, c, first + r, room.middle + r * size);
}

/* All rows, by all threads. Each loop ends when all are through: where others use the machine, a
   thread that waits may wait long, so what is cheap is done by each thread for itself. */

static void share_columns(const Layer *l, Ending ending, const Linear *part, int64_t rows,
                          Room room, float *y) {
#pragma omp for schedule(static)
    for (int64_t column = 0; column < part->out; column += COLUMNS)
        linear(l->kind, ending, part, rows, room.laid, room.scales, y, column, column + COLUMNS);
}

static void project_together(const Layer *l, const Call *c, Room room) {
    lay_out_rows(l->kind, c->x, l->qkv.in, NULL, 0, c->num_rows, room);
    share_columns(l, PLAIN, &l->qkv, c->num_rows, room, c->qkv);
}

static void finish_together(const Layer *l, const Call *c, Room room) {
    int64_t size = l->out.out, wide = l->up.out, rows = c->num_kept;
    lay_out_rows(l->kind, c->mixed, size, c->kept, 0, rows, room);
    share_columns(l, PLAIN, &l->out, rows, room, room.added);
    memcpy(room.middle, room.added, rows * size * sizeof(float));
    for (int64_t r = 0; r < rows; r++) norm_attended(l, c, r, room.middle + r * size);
    lay_out_rows(l->kind, room.middle, size, NULL, 0, rows, room);
    share_columns(l, l->ending, &l->up, rows, room, room.wide);
    lay_out_rows(l->kind, room.wide, wide, NULL, 0, rows, room);
    share_columns(l, PLAIN, &l->down, rows, room, c->result);
#pragma omp for schedule(static) nowait
    for (int64_t r = 0; r < rows; r++) norm_result(l, c, r, room.middle + r * size);
}

void encode_layer(const Layer *l, const Call *c, int64_t each) {
    int64_t size = l->out.out, head_size = size / l->num_heads;
    int is_shared = c->num_threads > 1;
#pragma omp parallel num_threads(c->num_threads)
    {
        char *mine = c->room + omp_get_thread_num() * each;
        Room own = own_room(l, mine), all = shared_room(l, mine, c->room + c->num_threads * each);
        if (is_shared && c->num_rows <= FEW) {
            project_together(l, c, all);
        } else {
#pragma omp for schedule(dynamic)
            for (int64_t first = 0; first < c->num_rows; first += BLOCK) {
                int64_t left = c->num_rows - first;
                project(l, c, first, left < BLOCK ? left : BLOCK, own);
            }
        }
#pragma omp for schedule(dynamic) collapse(2)
        for (int64_t n = 0; n < c->num_sequences; n++)
            for (int64_t head = 0; head < l->num_heads; head++) {
                int64_t from = c->bounds[n], length = c->bounds[n + 1] - from;
                const float *qkv = c->qkv + from * 3 * size + head * head_size;
                float *mixed = c->mixed + from * size + head * head_size;
                attend(qkv, length, size, head_size, mixed, (float *)mine);
            }
        if (is_shared && c->num_kept <= FEW) {
            finish_together(l, c, all);
        } else {
#pragma omp for schedule(dynamic) nowait
            for (int64_t first = 0; first < c->num_kept; first += BLOCK) {
                int64_t left = c->num_kept - first;
                finish(l, c, first, left < BLOCK ? left : BLOCK, own);
            }
        }
    }
}
