/* Reads, decodes and places chunks of shards, and encodes chunks. Depends on libc and POSIX threads only.

   It knows nothing of Python: ctypes loads it, and releases the interpreter's lock around each call. The functions of codecs come as
   pointers, which Python looks up in libraries that are installed (libraries.py). Nothing here raises: each chunk gets a status, and
   the caller goes the usual way, which has the words for errors, where one is not OK.

   What it promises, whatever files hold and whatever numbers it is given: it writes nowhere but into the selected elements of the
   caller's array. So
   - bytes out of a file are decoded from memory of this call's own, so that a file that changes meanwhile changes nothing there;
   - no length, size or position out of a file is used before it was compared with what the array's metadata say (decode_*);
   - numbers of the caller are checked chunk by chunk, on copies (locate);
   - a decoder is given memory for exactly one chunk: the chunk's place in the caller's array, where that is one piece, else a buffer.

   Memory and time of a call are bounded: by three chunks a thread, by 1 MiB or a chunk a thread of what it writes to a file, and by the
   chunks that it is given. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/xattr.h>
#include <unistd.h>

#if UINTPTR_MAX != UINT64_MAX || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the kernel is for 64-bit machines with little-endian numbers, which headers and checksums are stored in"
#endif
#ifndef RWF_NOWAIT
#define RWF_NOWAIT 0x00000008
#endif
#define EXPORT __attribute__((visibility("default")))

enum { ABI = 2 }; /* to be raised with every change of a structure, a number or a function that Python sees: kernel.py has the same */
enum { NONE = 0, ZSTD = 1, BLOSC = 2, GZIP = 3 };
enum { OK = 0, NOT_READ = 1, BAD_CHECKSUM = 2, NOT_DECODED = 3, OTHER_SIZE = 4, NO_MEMORY = 5, LATE = 6, BAD_ARGUMENT = 7,
       OTHER_VERSION = 8, DAMAGED_INDEX = 9 };
enum { EQUALS_FILL = -1, NOT_ENCODED = -2 }; /* in place of the number of encoded bytes */
enum { MAX_DIMENSIONS = 16, MAX_THREADS = 64, CRC_NBYTES = 4 };
enum { BLOSC_HEADER_NBYTES = 16, BLOSC_MAX_OVERHEAD = 16, ZSTD_LEAST_NBYTES = 5 };
enum { BLOSC_IS_COPIED = 2, BLOSC_HEAD_NBYTES = 1 << 9, BLOSC_LONG_NBYTES = 1 << 16 }; /* a flag; what is read first of a long chunk */
enum { ZSTD_LEVEL = 100, ZSTD_CHECKSUM = 201 };             /* ZSTD_cParameter */
enum { GZIP_ONLY = 31, ZLIB_OK = 0, ZLIB_STREAM_END = 1 };  /* windowBits: 15, and 16 for the header of gzip */
enum { MAX_IDLE = 16, KEPT_NBYTES = 1 << 20 };              /* what is kept between calls: so many pairs of buffers of so many bytes */
enum { MAX_CHUNKS = 1 << 16, MAX_FILES = 64, MAX_NBYTES = 1 << 27 }; /* of one call: until it returns, nothing can interrupt it */
enum { MISSING = -1 };                                      /* in place of the number of a file: of a chunk that is not stored */
enum { INLINE_NBYTES = 1 << 17 };                           /* zstd decodes them in the time in which another thread would begin */
/* In the time in which zstd decodes one byte, so many are copied, or decoded by Blosc; and so many it decodes in the time of a read. */
enum { COPIED_NBYTES = 8, BLOSC_NBYTES = 4, READ_NBYTES = 1 << 10 };
enum { MOST_PIECES = 64 };                                  /* that are written by one call of the system */
static const int64_t ANNOUNCED_NBYTES = 1 << 26;            /* the most that the system is told to fetch before it is waited for */
static const int64_t SPARE_NBYTES = 4096;                   /* an encoded chunk has at most twice its bytes, and these */

/* z_stream of zlib, whose layout is part of its binary interface. */
typedef struct {
    const uint8_t *next_in;
    unsigned avail_in;
    unsigned long total_in;
    uint8_t *next_out;
    unsigned avail_out;
    unsigned long total_out;
    const char *message;
    void *state;
    void *(*allocate)(void *, unsigned, unsigned);
    void (*release)(void *, void *);
    void *opaque;
    int data_type;
    unsigned long adler, reserved;
} ZlibStream;

/* Functions of other libraries, in the order of libraries.py. One that is missing is NULL, and Python asks for no codec that needs it. */
typedef struct {
    void *(*zstd_create_decoder)(void);
    size_t (*zstd_free_decoder)(void *);
    size_t (*zstd_decode)(void *, void *, size_t, const void *, size_t);
    unsigned long long (*zstd_content_size)(const void *, size_t);
    void *(*zstd_create_encoder)(void);
    size_t (*zstd_free_encoder)(void *);
    size_t (*zstd_set)(void *, int, int);
    size_t (*zstd_encode)(void *, void *, size_t, const void *, size_t);
    size_t (*zstd_bound)(size_t);
    unsigned (*zstd_is_error)(size_t);
    int (*blosc_decode)(const void *, void *, size_t, int);
    int (*blosc_decode_items)(const void *, int, int, void *);
    int (*blosc_encode)(int, int, size_t, size_t, const void *, void *, size_t, const char *, size_t, int);
    const char *(*zlib_version)(void);
    int (*inflate_init)(ZlibStream *, int, const char *, int);
    int (*inflate)(ZlibStream *, int);
    int (*inflate_end)(ZlibStream *);
    uint32_t (*crc32c)(uint32_t, const uint8_t *, size_t);
} Functions;

/* Facts that all chunks of a call share. */
typedef struct {
    const Functions *functions;
    int32_t ndim, itemsize, codec, has_crc;
    int32_t is_partial;                                     /* whether bytes that no selected element needs may be left out */
    int32_t level, has_checksum, shuffle, typesize, blocksize; /* for encoding */
    int64_t chunk_nbytes;
    int64_t chunk_shape[MAX_DIMENSIONS];                    /* as elements are stored: transposed already */
    int64_t strides[MAX_DIMENSIONS];                        /* of the caller's array, in bytes, its dimensions in the same order */
    char compressor[16];                                    /* the one inside of Blosc, for encoding */
} Params;

typedef struct {
    int64_t offset, nbytes;                                 /* in the file */
    int64_t at;                                             /* the first selected element's place in the caller's array, in bytes */
    int32_t file;                                           /* which of the descriptors */
    int32_t status;
} Chunk;

/* ------------------------------------------------------------------------------------------------ where elements are, and are put */

/* The selected elements of one chunk. */
typedef struct {
    int64_t first[MAX_DIMENSIONS], count[MAX_DIMENSIONS], step[MAX_DIMENSIONS];
    int64_t begin, end;                                     /* the decoded bytes that they lie in */
    int is_in_place;                                        /* whether the chunk, bytes in the same order, is what is selected */
} Region;

static int are_valid(const Params *params) {
    int64_t nbytes = params->itemsize;
    if (!params->functions || params->ndim < 0 || params->ndim > MAX_DIMENSIONS || params->itemsize < 1) return 0;
    for (int d = 0; d < params->ndim; d++) {
        if (params->chunk_shape[d] < 1 || params->strides[d] < 0) return 0;
        if (__builtin_mul_overflow(nbytes, params->chunk_shape[d], &nbytes)) return 0;
    }
    return nbytes == params->chunk_nbytes && nbytes <= INT64_MAX / 4 && memchr(params->compressor, 0, sizeof params->compressor);
}

/* Return whether so many elements a dimension, the first of them at `at`, lie within the `nbytes` bytes of the caller's array. */
static int lie_within(const Params *params, int64_t at, const int64_t *count, int64_t nbytes) {
    int64_t end = at, extent;
    if (at < 0) return 0;
    for (int d = 0; d < params->ndim; d++) {
        if (__builtin_mul_overflow(count[d] - 1, params->strides[d], &extent)) return 0;
        if (__builtin_add_overflow(end, extent, &end)) return 0;
    }
    return !__builtin_add_overflow(end, (int64_t)params->itemsize, &end) && end <= nbytes;
}

/* Find out where the selected elements of a chunk are; return 0 if they are not all in the chunk and in the caller's array.
   `selection` has ndim first elements, ndim counts and ndim steps. */
static int locate(const Params *params, int64_t at, const int64_t *selection, int64_t out_nbytes, Region *region) {
    const int ndim = params->ndim;
    int64_t stride = params->itemsize;
    memcpy(region->first, selection, ndim * sizeof *selection);
    memcpy(region->count, selection + ndim, ndim * sizeof *selection);
    memcpy(region->step, selection + 2 * ndim, ndim * sizeof *selection);
    region->begin = region->end = 0;
    region->is_in_place = 1;
    for (int d = ndim - 1; d >= 0; d--) {
        const int64_t length = params->chunk_shape[d], first = region->first[d], count = region->count[d];
        if (first < 0 || first >= length || count < 1 || region->step[d] < 1) return 0;
        if (count - 1 > (length - 1 - first) / region->step[d]) return 0;
        if (count == 1) region->step[d] = 1;                /* of one element any step is the same, and none overflows */
        region->begin += first * stride;
        region->end += (first + (count - 1) * region->step[d]) * stride;
        if (count != length || (count > 1 && params->strides[d] != stride)) region->is_in_place = 0;
        stride *= length;
    }
    region->end += params->itemsize;
    return lie_within(params, at, region->count, out_nbytes);
}

/* Copy `n` pieces of `nbytes` bytes. The common sizes of elements are constants, which the compiler makes single moves of; short rows are
   copied by moves too, in half of the time of as many calls of memcpy. */
static void copy_pieces(uint8_t *to, int64_t to_stride, const uint8_t *from, int64_t from_stride, int64_t n, int64_t nbytes) {
    switch (nbytes) {
    case 1: for (int64_t i = 0; i < n; i++) to[i * to_stride] = from[i * from_stride]; break;
    case 2: for (int64_t i = 0; i < n; i++) memcpy(to + i * to_stride, from + i * from_stride, 2); break;
    case 4: for (int64_t i = 0; i < n; i++) memcpy(to + i * to_stride, from + i * from_stride, 4); break;
    case 8: for (int64_t i = 0; i < n; i++) memcpy(to + i * to_stride, from + i * from_stride, 8); break;
    default:
        if (nbytes < 16 || nbytes > 128) {
            for (int64_t i = 0; i < n; i++) memcpy(to + i * to_stride, from + i * from_stride, (size_t)nbytes);
            break;
        }
        for (int64_t i = 0; i < n; i++, to += to_stride, from += from_stride) { /* the last move may overlap the one before */
            for (int64_t at = 0; at < nbytes - 16; at += 16) memcpy(to + at, from + at, 16);
            memcpy(to + nbytes - 16, from + nbytes - 16, 16);
        }
    }
}

/* Copy elements between two layouts, `count` a dimension. */
static void copy_elements(int ndim, const int64_t *count, int64_t itemsize, uint8_t *to, const int64_t *to_strides, const uint8_t *from,
                          const int64_t *from_strides) {
    int64_t index[MAX_DIMENSIONS] = {0}, piece = itemsize;
    int last = ndim - 1;
    /* The innermost dimensions that are one piece on both sides. */
    while (last >= 0 && (count[last] == 1 || (from_strides[last] == piece && to_strides[last] == piece))) piece *= count[last--];
    if (last < 0) {
        memcpy(to, from, (size_t)piece);
        return;
    }
    for (;;) {
        int64_t to_row = 0, from_row = 0;
        for (int d = 0; d < last; d++) {
            to_row += index[d] * to_strides[d];
            from_row += index[d] * from_strides[d];
        }
        copy_pieces(to + to_row, to_strides[last], from + from_row, from_strides[last], count[last], piece);
        int d = last - 1;
        while (d >= 0 && ++index[d] == count[d]) index[d--] = 0;
        if (d < 0) return;
    }
}

/* Copy the selected elements of a decoded chunk, of which `from` is the region's first byte, into the caller's array. */
static void place(const Params *params, const Region *region, const uint8_t *from, uint8_t *to) {
    int64_t strides[MAX_DIMENSIONS], stride = params->itemsize;
    for (int d = params->ndim - 1; d >= 0; d--) {
        strides[d] = stride * region->step[d];
        stride *= params->chunk_shape[d];
    }
    copy_elements(params->ndim, region->count, params->itemsize, to, params->strides, from, strides);
}

/* ------------------------------------------------------------------------------------------------ threads, and what they keep */

/* Memory of one thread at work. Between calls some are kept, since new memory has to be mapped and cleared first. */
typedef struct Scratch {
    struct Scratch *next;                                   /* of those that are kept */
    void *zstd, *zstd_encoder;
    size_t (*free_zstd)(void *), (*free_zstd_encoder)(void *); /* of the library that made it */
    uint8_t *encoded, *decoded;
    int64_t encoded_nbytes, decoded_nbytes;
} Scratch;

static pthread_mutex_t idle_lock = PTHREAD_MUTEX_INITIALIZER;
static Scratch *idle;                                       /* the one that was used last, whose memory is in the processor's cache */
static int idle_count;
static int is_ready;
static atomic_int helpers;                                  /* threads that are started here and run, of all calls */

static void release_zstd_encoder(Scratch *scratch) {
    if (scratch->zstd_encoder) scratch->free_zstd_encoder(scratch->zstd_encoder);
    scratch->zstd_encoder = NULL;
}

static void lock_idle(void) { (void)pthread_mutex_lock(&idle_lock); }

static void unlock_idle(void) { (void)pthread_mutex_unlock(&idle_lock); }

/* In a child process none of the threads runs that were counted. What they worked with is lost there; what is kept is whole. */
static void set_up_child(void) {
    unlock_idle();
    atomic_store(&helpers, 0);
}

__attribute__((constructor)) static void set_up(void) { is_ready = !pthread_atfork(lock_idle, unlock_idle, set_up_child); }

/* Make a decoder, unless there is one that the same library has made: those of two versions differ. */
static int has_zstd_decoder(Scratch *scratch, const Functions *functions) {
    if (scratch->zstd && scratch->free_zstd != functions->zstd_free_decoder) {
        scratch->free_zstd(scratch->zstd);
        scratch->zstd = NULL;
    }
    if (!scratch->zstd) {
        scratch->zstd = functions->zstd_create_decoder();
        scratch->free_zstd = functions->zstd_free_decoder;
    }
    return scratch->zstd != NULL;
}

/* Make an encoder that writes the content size into each frame, and the checksum if asked for; as above. */
static int has_zstd_encoder(Scratch *scratch, const Params *params) {
    const Functions *functions = params->functions;
    if (scratch->free_zstd_encoder != functions->zstd_free_encoder) release_zstd_encoder(scratch);
    if (!scratch->zstd_encoder) {
        scratch->zstd_encoder = functions->zstd_create_encoder();
        scratch->free_zstd_encoder = functions->zstd_free_encoder;
    }
    void *encoder = scratch->zstd_encoder;
    if (!encoder) return 0;
    const int is_set = !functions->zstd_is_error(functions->zstd_set(encoder, ZSTD_LEVEL, params->level)) &&
                       !functions->zstd_is_error(functions->zstd_set(encoder, ZSTD_CHECKSUM, params->has_checksum != 0));
    if (!is_set) release_zstd_encoder(scratch);             /* it may have stopped in the middle of a frame */
    return is_set;
}

/* Return memory for a thread; NULL if there is none. */
static Scratch *take_scratch(void) {
    lock_idle();
    Scratch *scratch = idle;
    if (scratch) {
        idle = scratch->next;
        idle_count--;
    }
    unlock_idle();
    return scratch ? scratch : calloc(1, sizeof *scratch);
}

static int reserve(uint8_t **buffer, int64_t *nbytes, int64_t needed) {
    if (*nbytes >= needed) return 1;
    free(*buffer);
    *buffer = malloc((size_t)needed);
    *nbytes = *buffer ? needed : 0;
    return *buffer != NULL;
}

static void release(uint8_t **buffer, int64_t *nbytes, int64_t kept) {
    if (*nbytes <= kept) return;
    free(*buffer);
    *buffer = NULL;
    *nbytes = 0;
}

/* Keep memory for later calls; buffers that are long, or more than are kept, are freed. */
static void give_back(Scratch *scratch) {
    release(&scratch->encoded, &scratch->encoded_nbytes, KEPT_NBYTES);
    release(&scratch->decoded, &scratch->decoded_nbytes, KEPT_NBYTES);
    lock_idle();
    const int is_kept = idle_count < MAX_IDLE;
    if (is_kept) {
        scratch->next = idle;
        idle = scratch;
        idle_count++;
    }
    unlock_idle();
    if (is_kept) return;
    release(&scratch->encoded, &scratch->encoded_nbytes, 0);
    release(&scratch->decoded, &scratch->decoded_nbytes, 0);
    if (scratch->zstd) scratch->free_zstd(scratch->zstd);
    release_zstd_encoder(scratch);
    free(scratch);
}

/* Threads at work on one job. On a busy machine some begin when the others have done it all: those are not waited for, and do nothing. */
typedef struct {
    void *(*work)(void *);
    void *job;
    pthread_mutex_t lock;
    pthread_cond_t has_ended;
    int running;                                            /* of the threads that were started */
    int holders;                                            /* threads that may still look here; the last one frees it */
    int is_closed;
} Crew;

static void leave(Crew *crew) {
    (void)pthread_mutex_lock(&crew->lock);
    const int is_last = --crew->holders == 0;
    (void)pthread_mutex_unlock(&crew->lock);
    if (!is_last) return;
    (void)pthread_mutex_destroy(&crew->lock);
    (void)pthread_cond_destroy(&crew->has_ended);
    free(crew);
}

static void *help(void *argument) {
    Crew *crew = argument;
    (void)pthread_mutex_lock(&crew->lock);
    const int is_needed = !crew->is_closed;
    crew->running += is_needed;
    (void)pthread_mutex_unlock(&crew->lock);
    if (is_needed) {
        crew->work(crew->job);
        (void)pthread_mutex_lock(&crew->lock);
        crew->running--;
        (void)pthread_cond_signal(&crew->has_ended);
        (void)pthread_mutex_unlock(&crew->lock);
    }
    atomic_fetch_sub(&helpers, 1);
    leave(crew);
    return NULL;
}

/* Start threads, as long as all calls together have started fewer than `threads`. Signals go to Python's threads. */
static void start_helpers(Crew *crew, int64_t threads) {
    pthread_attr_t detached;
    pthread_t started;
    sigset_t all, before;
    if (pthread_attr_init(&detached)) return;
    (void)pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    for (int64_t n = 1; n < threads; n++) {
        (void)pthread_mutex_lock(&crew->lock);
        crew->holders++;
        (void)pthread_mutex_unlock(&crew->lock);
        if (atomic_fetch_add(&helpers, 1) < threads - 1 && !pthread_create(&started, &detached, help, crew)) continue;
        atomic_fetch_sub(&helpers, 1);
        leave(crew);
        break;
    }
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    (void)pthread_attr_destroy(&detached);
}

/* Run `work` in this thread and in more of them; return when all have ended that have begun. */
static void run_in_threads(void *(*work)(void *), void *job, int64_t threads) {
    Crew *crew = threads > 1 ? malloc(sizeof *crew) : NULL;
    if (!crew) {
        work(job);
        return;
    }
    *crew = (Crew){.work = work, .job = job, .holders = 1};
    (void)pthread_mutex_init(&crew->lock, NULL);
    (void)pthread_cond_init(&crew->has_ended, NULL);
    start_helpers(crew, threads < MAX_THREADS ? threads : MAX_THREADS);
    work(job);
    (void)pthread_mutex_lock(&crew->lock);
    crew->is_closed = 1;
    while (crew->running) (void)pthread_cond_wait(&crew->has_ended, &crew->lock);
    (void)pthread_mutex_unlock(&crew->lock);
    leave(crew);
}

/* ------------------------------------------------------------------------------------------------ decoding */

/* One frame with its content size, or several of which all but the first are empty; everything else goes the usual way, also frames of
   the formats before 0.8, whose decoders some builds still have. A checksum at the end of a frame is compared by the library.
   RFC 8878, 3.1.1. */
static int decode_zstd(const Params *params, void *decoder, const uint8_t *data, size_t nbytes, uint8_t *to) {
    static const uint8_t magic[4] = {0x28, 0xb5, 0x2f, 0xfd};
    const size_t expected = (size_t)params->chunk_nbytes;
    if (nbytes < ZSTD_LEAST_NBYTES || memcmp(data, magic, sizeof magic)) return NOT_DECODED;
    if (params->functions->zstd_content_size(data, nbytes) != expected) return OTHER_SIZE;
    /* An error is a number close to SIZE_MAX, which no chunk has bytes of. */
    return params->functions->zstd_decode(decoder, to, expected, data, nbytes) == expected ? OK : NOT_DECODED;
}

/* The first bytes of a Blosc chunk; the place of each block follows. */
typedef struct {
    uint8_t version, compressor_version, flags, typesize;
    int32_t decoded, block, encoded;
} BloscHeader;

static int is_decoded_by_items(const Params *params, const Region *region, const BloscHeader *header) {
    const int64_t typesize = header->typesize, nbytes = params->chunk_nbytes, last = (nbytes - 1) / header->block * header->block;
    const int is_needed_whole = region->begin < header->block && region->end > last; /* without items it is decoded without a copy */
    return params->is_partial && !is_needed_whole && typesize && !(region->begin % typesize || region->end % typesize || nbytes % typesize);
}

/* The header, as in chunk_coding.py, is compared first: without it the library would believe what it says. */
static int decode_blosc(const Params *params, const Region *region, const uint8_t *data, size_t nbytes, uint8_t *to) {
    BloscHeader header;
    const int64_t expected = params->chunk_nbytes;
    if (nbytes < BLOSC_HEADER_NBYTES || nbytes > INT32_MAX || expected > INT32_MAX) return OTHER_SIZE;
    memcpy(&header, data, sizeof header);
    if (header.decoded != expected || header.encoded != (int64_t)nbytes || header.block < 1) return OTHER_SIZE;
    if (is_decoded_by_items(params, region, &header)) {
        const int typesize = header.typesize, needed = (int)(region->end - region->begin);
        int decoded = params->functions->blosc_decode_items(data, (int)region->begin / typesize, needed / typesize, to + region->begin);
        return decoded == needed ? OK : NOT_DECODED;
    }
    return params->functions->blosc_decode(data, to, (size_t)expected, 1) == expected ? OK : NOT_DECODED;
}

/* One member, to its end; several, or bytes behind it, go the usual way. RFC 1952. */
static int decode_gzip(const Params *params, const uint8_t *data, size_t nbytes, uint8_t *to) {
    const Functions *functions = params->functions;
    const size_t expected = (size_t)params->chunk_nbytes;
    ZlibStream stream;
    uint8_t spare;
    if (nbytes > UINT32_MAX || expected > UINT32_MAX) return OTHER_SIZE;
    memset(&stream, 0, sizeof stream);
    if (functions->inflate_init(&stream, GZIP_ONLY, functions->zlib_version(), sizeof stream) != ZLIB_OK) return NO_MEMORY;
    stream.next_in = data;
    stream.avail_in = (unsigned)nbytes;
    stream.next_out = to;
    stream.avail_out = (unsigned)expected;
    int state = functions->inflate(&stream, 0);
    if (state == ZLIB_OK && stream.avail_out == 0) {        /* it may stop before the checksum if no byte more can be put out */
        stream.next_out = &spare;
        stream.avail_out = 1;
        state = functions->inflate(&stream, 0);
    }
    const int is_all = state == ZLIB_STREAM_END && stream.avail_in == 0 && stream.total_out == expected;
    functions->inflate_end(&stream);
    return is_all ? OK : NOT_DECODED;
}

/* Decode a chunk into memory of its size; bytes outside of the region may stay as they are. */
static int decode(const Params *params, const Region *region, void *zstd, const uint8_t *data, size_t nbytes, uint8_t *to) {
    switch (params->codec) {
    case ZSTD: return decode_zstd(params, zstd, data, nbytes, to);
    case BLOSC: return decode_blosc(params, region, data, nbytes, to);
    case GZIP: return decode_gzip(params, data, nbytes, to);
    }
    return BAD_ARGUMENT;
}

/* ------------------------------------------------------------------------------------------------ reading */

typedef struct {
    const Params *params;
    const int32_t *files;
    int64_t file_count;
    Chunk *chunks;
    const int64_t *selections;                              /* (n, 3, ndim): first elements, counts, steps */
    int64_t n;
    uint8_t *out;
    int64_t out_nbytes;
    const uint8_t *fill;                                    /* an element of chunks that are not stored; NULL: there are none */
    int64_t at_once;                                        /* chunks that a thread takes each time: neighbours, most often */
    int is_second_pass;                                     /* over the chunks that were late in the first */
    atomic_llong next, late_nbytes;
} ReadJob;

/* Read `nbytes` bytes of a file. If the disk is not to be waited for, LATE means that they are not in the page cache. */
static int read_fully(int file, uint8_t *to, int64_t nbytes, int64_t offset, int waits) {
    for (int64_t done = 0; done < nbytes;) {
        struct iovec piece = {to + done, (size_t)(nbytes - done)};
        ssize_t got = preadv2(file, &piece, 1, offset + done, waits ? 0 : RWF_NOWAIT);
        if (got > 0) {
            done += got;
        } else if (got == 0) {
            return NOT_READ;                                /* the file ends before */
        } else if (errno == EAGAIN && !waits) {
            return LATE;
        } else if ((errno == EOPNOTSUPP || errno == ENOSYS || errno == EINVAL) && !waits) {
            waits = 1;                                      /* this filesystem cannot say what it has in memory */
        } else if (errno != EINTR) {
            return NOT_READ;
        }
    }
    return OK;
}

/* Read selected elements of a plain chunk. If they lie far apart, one half of them is read after the other: then the buffer is one that is
   kept, and its bytes are still in the processor's cache when they are placed. */
static int read_elements(const ReadJob *job, Scratch *scratch, const Chunk *chunk, const Region *region, uint8_t *to, int waits) {
    const Params *params = job->params;
    const int64_t nbytes = region->end - region->begin;
    int64_t stride = params->itemsize;
    int outer = 0;
    while (outer < params->ndim && region->count[outer] == 1) outer++;
    if (nbytes > KEPT_NBYTES && outer < params->ndim) {
        const int64_t count = region->count[outer], half = count / 2;
        Region first = *region, second = *region;
        for (int d = params->ndim - 1; d > outer; d--) stride *= params->chunk_shape[d];
        first.count[outer] = half;
        first.end -= (count - half) * region->step[outer] * stride;
        second.count[outer] = count - half;
        second.begin += half * region->step[outer] * stride;
        const int status = read_elements(job, scratch, chunk, &first, to, waits);
        return status != OK ? status : read_elements(job, scratch, chunk, &second, to + half * params->strides[outer], waits);
    }
    if (!reserve(&scratch->decoded, &scratch->decoded_nbytes, nbytes)) return NO_MEMORY;
    const int status = read_fully(job->files[chunk->file], scratch->decoded, nbytes, chunk->offset + region->begin, waits);
    if (status == OK) place(params, region, scratch->decoded, to);
    return status;
}

static int read_plain(const ReadJob *job, Scratch *scratch, const Chunk *chunk, const Region *region, int waits) {
    uint8_t *to = job->out + chunk->at;
    if (chunk->nbytes != job->params->chunk_nbytes) return OTHER_SIZE;
    if (region->is_in_place) return read_fully(job->files[chunk->file], to, chunk->nbytes, chunk->offset, waits);
    return read_elements(job, scratch, chunk, region, to, waits);
}

/* Find the bytes of the Blosc chunk, of which the head was read, that the library needs to decode a region; return 0 if it needs all. */
static int find_blosc_blocks(const Params *params, const Region *region, const uint8_t *head, int64_t nbytes, int64_t *from, int64_t *until) {
    BloscHeader header;
    int32_t start;
    memcpy(&header, head, sizeof header);
    if (header.decoded != params->chunk_nbytes || header.encoded != nbytes || header.block < 1) return 0;
    const int64_t blocks = (header.decoded - 1) / header.block + 1, blocks_end = BLOSC_HEADER_NBYTES + blocks * (int64_t)sizeof start;
    if (header.flags & BLOSC_IS_COPIED || blocks_end > BLOSC_HEAD_NBYTES || !is_decoded_by_items(params, region, &header)) return 0;
    int64_t last = 0;
    *from = *until = nbytes;
    for (int64_t i = region->begin / header.block; i <= (region->end - 1) / header.block; i++) {
        memcpy(&start, head + BLOSC_HEADER_NBYTES + i * (int64_t)sizeof start, sizeof start);
        if (start < *from) *from = start;
        if (start > last) last = start;
    }
    for (int64_t i = 0; i < blocks; i++) {
        memcpy(&start, head + BLOSC_HEADER_NBYTES + i * (int64_t)sizeof start, sizeof start);
        if (start > last && start < *until) *until = start;
    }
    return *from >= blocks_end && last < *until && *until <= nbytes;
}

/* Read an encoded chunk; of a long one of Blosc only the blocks that are needed. To the library it then ends behind them: it reads none of
   what is left in the buffer from another chunk. `nbytes`: of the chunk, and then where it ends. */
static int read_needed(const ReadJob *job, uint8_t *to, const Chunk *chunk, const Region *region, int waits, int64_t *nbytes) {
    const Params *params = job->params;
    const int file = job->files[chunk->file];
    int64_t from, until;
    const int is_long = *nbytes >= BLOSC_LONG_NBYTES && *nbytes <= INT32_MAX && region->end - region->begin <= params->chunk_nbytes / 2;
    if (params->codec != BLOSC || params->has_crc || !params->is_partial || !is_long) return read_fully(file, to, *nbytes, chunk->offset, waits);
    int status = read_fully(file, to, BLOSC_HEAD_NBYTES, chunk->offset, waits);
    if (status != OK) return status;
    if (!find_blosc_blocks(params, region, to, *nbytes, &from, &until))
        return read_fully(file, to + BLOSC_HEAD_NBYTES, *nbytes - BLOSC_HEAD_NBYTES, chunk->offset + BLOSC_HEAD_NBYTES, waits);
    if (from < BLOSC_HEAD_NBYTES) from = BLOSC_HEAD_NBYTES;
    if (from < until) status = read_fully(file, to + from, until - from, chunk->offset + from, waits);
    const int32_t end = (int32_t)until;
    memcpy(to + offsetof(BloscHeader, encoded), &end, sizeof end);
    *nbytes = until;
    return status;
}

static int read_encoded(const ReadJob *job, Scratch *scratch, const Chunk *chunk, const Region *region, int waits) {
    const Params *params = job->params;
    uint8_t *to = job->out + chunk->at;
    int64_t nbytes = chunk->nbytes;
    if (nbytes > 2 * params->chunk_nbytes + SPARE_NBYTES) return OTHER_SIZE;
    if (!reserve(&scratch->encoded, &scratch->encoded_nbytes, nbytes)) return NO_MEMORY;
    int status = read_needed(job, scratch->encoded, chunk, region, waits, &nbytes);
    if (status != OK) return status;
    if (params->has_crc) {
        uint32_t stored;
        nbytes -= CRC_NBYTES;
        if (nbytes < 0) return BAD_CHECKSUM;
        memcpy(&stored, scratch->encoded + nbytes, CRC_NBYTES);
        if (params->functions->crc32c(0, scratch->encoded, (size_t)nbytes) != stored) return BAD_CHECKSUM;
    }
    if (params->codec == NONE) {
        if (nbytes != params->chunk_nbytes) return OTHER_SIZE;
        place(params, region, scratch->encoded + region->begin, to);
        return OK;
    }
    if (region->is_in_place) return decode(params, region, scratch->zstd, scratch->encoded, (size_t)nbytes, to);
    if (!reserve(&scratch->decoded, &scratch->decoded_nbytes, params->chunk_nbytes)) return NO_MEMORY;
    status = decode(params, region, scratch->zstd, scratch->encoded, (size_t)nbytes, scratch->decoded);
    if (status == OK) place(params, region, scratch->decoded + region->begin, to);
    return status;
}

/* Put the fill value in place of a chunk that is not stored. */
static int place_fill(const ReadJob *job, Scratch *scratch, const Chunk *chunk, const Region *region) {
    const Params *params = job->params;
    const int64_t nbytes = region->end - region->begin;
    if (!reserve(&scratch->decoded, &scratch->decoded_nbytes, nbytes)) return NO_MEMORY;
    uint8_t *from = scratch->decoded;
    memcpy(from, job->fill, (size_t)params->itemsize);
    for (int64_t filled = params->itemsize; filled < nbytes; filled *= 2)
        memcpy(from + filled, from, (size_t)(filled < nbytes - filled ? filled : nbytes - filled));
    place(params, region, from, job->out + chunk->at);
    return OK;
}

static int read_chunk(const ReadJob *job, Scratch *scratch, const Chunk *chunk, const int64_t *selection, int waits) {
    const Params *params = job->params;
    Region region;
    const int is_missing = chunk->file == MISSING && job->fill;
    if (!is_missing && (chunk->file < 0 || chunk->file >= job->file_count)) return BAD_ARGUMENT;
    if (chunk->offset < 0 || chunk->nbytes < 0 || chunk->offset > INT64_MAX - chunk->nbytes) return BAD_ARGUMENT;
    if (!locate(params, chunk->at, selection, job->out_nbytes, &region)) return BAD_ARGUMENT;
    if (is_missing) return place_fill(job, scratch, chunk, &region);
    const int is_plain = params->codec == NONE && !params->has_crc && (params->is_partial || region.is_in_place);
    return (is_plain ? read_plain : read_encoded)(job, scratch, chunk, &region, waits);
}

/* Return LATE if the system was told to fetch a chunk that is not in memory; the second pass waits for it. */
static int announce(ReadJob *job, const Chunk *chunk) {
    if (atomic_fetch_add(&job->late_nbytes, chunk->nbytes) >= ANNOUNCED_NBYTES) return OK;
    (void)posix_fadvise(job->files[chunk->file], chunk->offset, chunk->nbytes, POSIX_FADV_WILLNEED);
    return LATE;
}

static void *read_work(void *argument) {
    ReadJob *job = argument;
    Scratch *scratch = take_scratch();
    /* Without one the statuses say so, where no other thread takes the chunks. */
    const int is_able = scratch && (job->params->codec != ZSTD || has_zstd_decoder(scratch, job->params->functions));
    while (is_able) {
        int64_t start = atomic_fetch_add(&job->next, job->at_once), end = start + job->at_once;
        if (start >= job->n) break;
        for (int64_t i = start; i < end && i < job->n; i++) {
            const Chunk chunk = job->chunks[i];             /* a copy: what is checked is what is used */
            const int64_t *selection = job->selections + i * 3 * job->params->ndim;
            if (job->is_second_pass && chunk.status != LATE) continue;
            int status = read_chunk(job, scratch, &chunk, selection, job->is_second_pass);
            if (status == LATE && announce(job, &chunk) != LATE) status = read_chunk(job, scratch, &chunk, selection, 1);
            job->chunks[i].status = status;
        }
    }
    if (scratch) give_back(scratch);
    return NULL;
}

/* Read the chunks of a job; return the number of those whose status is not OK. */
static int64_t run_job(ReadJob *job, int64_t threads) {
    int64_t bad = 0;
    job->at_once = job->n / (threads * 16) + 1;
    if (job->at_once > 8) job->at_once = 8;
    run_in_threads(read_work, job, threads < job->n ? threads : job->n);
    if (atomic_load(&job->late_nbytes)) {
        job->is_second_pass = 1;
        job->at_once = 1;
        atomic_store(&job->next, 0);
        run_in_threads(read_work, job, threads < job->n ? threads : job->n);
    }
    for (int64_t i = 0; i < job->n; i++) bad += job->chunks[i].status != OK;
    return bad;
}

/* Read chunks; return the number of those whose status is not OK, whose elements in the caller's array may have any value then. */
EXPORT int64_t shardstore_read(const Params *params, const int32_t *files, int64_t file_count, Chunk *chunks, const int64_t *selections,
                               int64_t n, uint8_t *out, int64_t out_nbytes, int32_t threads) {
    for (int64_t i = 0; i < n; i++) chunks[i].status = NO_MEMORY;
    if (!are_valid(params) || threads < 1) return n;
    ReadJob job = {.params = params, .files = files, .file_count = file_count, .chunks = chunks, .selections = selections, .n = n,
                   .out = out, .out_nbytes = out_nbytes};
    return run_job(&job, threads);
}

/* ------------------------------------------------------------------------------------------------ selections of arrays */

/* The selected elements along a stored dimension of an array, and how its chunks are numbered. */
typedef struct {
    int64_t start, count, step;
    int64_t chunks_per_shard;
    int64_t slot_stride;                                    /* from a chunk's slot in its shard to that of the next one */
    int64_t shard_stride;                                   /* from a shard's number among the selected ones to that of the next one */
} Along;

/* A version of a shard: its index, and what its file shows as long as it is this version. */
typedef struct {
    const uint64_t *entries;                                /* offset and length, by slot; NULL: there is no such shard */
    int64_t slots;
    int64_t nbytes;                                         /* of the version */
    int64_t path;                                           /* where it begins among the paths */
    uint64_t device, inode;
    int64_t size, mtime_ns, ctime_ns;
    int64_t has_mark;
    uint64_t mark;
} Shard;

/* A call of shardstore_read_selection. */
typedef struct {
    const Params *params;
    const Along *along;
    const Shard *shards;
    int64_t shard_count;
    const char *paths;
    int64_t paths_nbytes;
    const char *inside;                                     /* the directory that the files have to lie in, with a slash; NULL: any */
    const uint8_t *fill;
    int64_t wide[MAX_DIMENSIONS];                           /* elements of a shard */
    int32_t files[MAX_FILES];
    struct stat before[MAX_FILES];
    int file_count;
    Chunk *chunks;
    int64_t *selections;
    int64_t n, most;
    int64_t stored, stored_nbytes, spanned;
    int has_more;
} Call;

/* Some neighbouring selected elements along each dimension: those of one shard, or of one chunk. */
typedef struct {
    int64_t begin[MAX_DIMENSIONS], count[MAX_DIMENSIONS];
    int64_t number[MAX_DIMENSIONS];                         /* how many such pieces come before it */
} Piece;

/* Return how many elements from this one on, all before `end`, lie in one piece of `wide` elements of the array. */
static int64_t run_length(const Along *along, int64_t begin, int64_t end, int64_t wide) {
    const int64_t at = along->start + begin * along->step, length = (wide - 1 - at % wide) / along->step + 1;
    return length < end - begin ? length : end - begin;
}

static void first_piece(const Params *params, const Along *along, const int64_t *wide, const int64_t *begin, const int64_t *count,
                        Piece *piece) {
    for (int d = 0; d < params->ndim; d++) {
        piece->begin[d] = begin[d];
        piece->count[d] = run_length(&along[d], begin[d], begin[d] + count[d], wide[d]);
        piece->number[d] = 0;
    }
}

/* Go on to the next piece of these elements in C order; return 0 after the last one. */
static int next_piece(const Params *params, const Along *along, const int64_t *wide, const int64_t *begin, const int64_t *count,
                      Piece *piece) {
    for (int d = params->ndim - 1; d >= 0; d--) {
        const int64_t end = begin[d] + count[d];
        piece->begin[d] += piece->count[d];
        piece->number[d]++;
        const int is_there = piece->begin[d] < end;
        if (!is_there) piece->begin[d] = begin[d], piece->number[d] = 0;
        piece->count[d] = run_length(&along[d], piece->begin[d], end, wide[d]);
        if (is_there) return 1;
    }
    return 0;
}

/* Check the numbers of a selection; find out how many elements a shard has, and how many chunks one call reads at most. */
static int are_valid_along(Call *call) {
    const Params *params = call->params;
    int64_t end, chunks = 1;
    call->most = MAX_NBYTES / params->chunk_nbytes;
    if (call->most > MAX_CHUNKS) call->most = MAX_CHUNKS;
    if (call->most < 1) call->most = 1;
    for (int d = 0; d < params->ndim; d++) {
        const Along *along = &call->along[d];
        const int64_t side = params->chunk_shape[d];
        if (along->start < 0 || along->count < 1 || along->step < 1 || along->chunks_per_shard < 1) return 0;
        if (__builtin_mul_overflow(along->count, along->step, &end) || __builtin_add_overflow(end, along->start, &end)) return 0;
        if (__builtin_mul_overflow(side, along->chunks_per_shard, &call->wide[d])) return 0;
        const int64_t last = along->start + (along->count - 1) * along->step;
        const int64_t length = along->step < side ? last / side - along->start / side + 1 : along->count;
        if (__builtin_mul_overflow(chunks, length, &chunks) || chunks > call->most) chunks = call->most;
    }
    call->most = chunks;
    return 1;
}

/* Times that have more than 64 bits wrap: Python names no version by them. */
static int64_t as_ns(struct timespec time) { return (int64_t)((uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec); }

static int lies_inside(int file, const char *inside) {
    char link[64], real[4096];
    if (!inside) return 1;
    (void)snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    const ssize_t nbytes = readlink(link, real, sizeof real);
    const size_t needed = strlen(inside);
    return nbytes > 0 && (size_t)nbytes < sizeof real && (size_t)nbytes > needed && !memcmp(real, inside, needed);
}

/* Return whether an open file shows a version, as versions.py finds out. A file that is being appended to is left to Python. */
static int shows(int file, const struct stat *status, const Shard *shard) {
    const int64_t mtime_ns = as_ns(status->st_mtim), ctime_ns = as_ns(status->st_ctim);
    uint64_t mark = 0;
    if (!S_ISREG(status->st_mode) || status->st_dev != shard->device || status->st_ino != shard->inode) return 0;
    if (status->st_size != shard->size || mtime_ns != shard->mtime_ns || ctime_ns != shard->ctime_ns) return 0;
    if (fgetxattr(file, "user.shardstore.append", NULL, 0) >= 0) return 0;
    if (errno != ENODATA && errno != EPERM && errno != EOPNOTSUPP && errno != ENOSYS) return 0;
    if (mtime_ns % 1000000 || ctime_ns % 1000) return !shard->has_mark;
    const ssize_t nbytes = fgetxattr(file, "user.shardstore.version", &mark, sizeof mark);
    if (nbytes >= 0) return nbytes == sizeof mark && shard->has_mark && mark == shard->mark;
    return !shard->has_mark && (errno == ENODATA || errno == EPERM || errno == EACCES || errno == EOPNOTSUPP || errno == ENOSYS);
}

/* Return whether the bytes of an open file were left alone. Its ctime changes also with the number of its names. */
static int is_unchanged(int file, const struct stat *before) {
    struct stat after;
    if (fstat(file, &after) || after.st_size != before->st_size || as_ns(after.st_mtim) != as_ns(before->st_mtim)) return 0;
    return as_ns(after.st_ctim) == as_ns(before->st_ctim) || after.st_nlink != before->st_nlink;
}

static int open_shard(Call *call, const Shard *shard) {
    struct stat *before = &call->before[call->file_count];
    if (shard->path < 0 || shard->path >= call->paths_nbytes) return BAD_ARGUMENT;
    const int file = open(call->paths + shard->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file < 0) return OTHER_VERSION;
    call->files[call->file_count++] = file;
    return !fstat(file, before) && shows(file, before, shard) && lies_inside(file, call->inside) ? OK : OTHER_VERSION;
}

/* Add a chunk of a shard to those that are read. Numbers that wrap name another slot or place, which is checked as each is. */
static int add_chunk(Call *call, const Shard *shard, const Piece *piece) {
    const Params *params = call->params;
    const int ndim = params->ndim;
    Chunk *chunk = &call->chunks[call->n];
    int64_t *selection = call->selections + call->n * 3 * ndim, span = 0, stride = 1;
    uint64_t slot = 0, at = 0;
    for (int d = ndim - 1; d >= 0; d--) {
        const Along *along = &call->along[d];
        const int64_t element = along->start + piece->begin[d] * along->step, side = params->chunk_shape[d];
        slot += (uint64_t)(element / side % along->chunks_per_shard) * (uint64_t)along->slot_stride;
        at += (uint64_t)piece->begin[d] * (uint64_t)params->strides[d];
        selection[d] = element % side;
        selection[ndim + d] = piece->count[d];
        selection[2 * ndim + d] = along->step;
        span += (piece->count[d] - 1) * along->step * stride;
        stride *= side;
    }
    *chunk = (Chunk){.at = (int64_t)at, .file = MISSING, .status = NO_MEMORY};
    call->n++;
    if (!shard->entries) return OK;
    if (slot >= (uint64_t)shard->slots) return BAD_ARGUMENT;
    const uint64_t offset = shard->entries[2 * slot], nbytes = shard->entries[2 * slot + 1], end = (uint64_t)shard->nbytes;
    if (offset == UINT64_MAX && nbytes == UINT64_MAX) return OK;
    if (offset > end || nbytes > end - offset) return DAMAGED_INDEX;
    chunk->offset = (int64_t)offset;
    chunk->nbytes = (int64_t)nbytes;
    chunk->file = call->file_count - 1;
    call->stored++;
    call->stored_nbytes += chunk->nbytes;
    call->spanned += span * params->itemsize;
    return OK;
}

/* Gather chunks shard by shard, but not the first `done` ones, until one call has enough. All their shards are open then. */
static int gather_chunks(Call *call, int64_t done) {
    const Params *params = call->params;
    int64_t origin[MAX_DIMENSIONS] = {0}, count[MAX_DIMENSIONS], passed = 0;
    Piece shard_piece, piece;
    for (int d = 0; d < params->ndim; d++) count[d] = call->along[d].count;
    first_piece(params, call->along, call->wide, origin, count, &shard_piece);
    do {
        uint64_t number = 0;
        for (int d = 0; d < params->ndim; d++) number += (uint64_t)shard_piece.number[d] * (uint64_t)call->along[d].shard_stride;
        if (number >= (uint64_t)call->shard_count) return BAD_ARGUMENT;
        const Shard *shard = &call->shards[number];
        int is_open = !shard->entries;
        first_piece(params, call->along, params->chunk_shape, shard_piece.begin, shard_piece.count, &piece);
        do {
            if (passed++ < done) continue;
            call->has_more = call->n == call->most || (!is_open && call->file_count == MAX_FILES);
            if (call->has_more) return OK;
            int status = is_open ? OK : open_shard(call, shard);
            is_open = 1;
            if (status == OK) status = add_chunk(call, shard, &piece);
            if (status != OK) return status;
        } while (next_piece(params, call->along, params->chunk_shape, shard_piece.begin, shard_piece.count, &piece));
    } while (next_piece(params, call->along, call->wide, origin, count, &shard_piece));
    return OK;
}

/* Return how many threads are worth starting: of plain and Blosc chunks only what lies around selected elements is decoded. */
static int64_t threads_for(const Call *call, int64_t threads) {
    const Params *params = call->params;
    int64_t nbytes = call->stored * params->chunk_nbytes;
    if ((params->codec == NONE || params->codec == BLOSC) && !params->has_crc) {
        const int64_t least = call->spanned / (params->codec == NONE ? COPIED_NBYTES : BLOSC_NBYTES) + call->stored * READ_NBYTES;
        if (least < nbytes) nbytes = least;
    }
    return nbytes <= INLINE_NBYTES ? 1 : threads;
}

static int read_gathered(Call *call, uint8_t *out, int64_t out_nbytes, int64_t threads) {
    ReadJob job = {.params = call->params, .files = call->files, .file_count = call->file_count, .chunks = call->chunks,
                   .selections = call->selections, .n = call->n, .out = out, .out_nbytes = out_nbytes, .fill = call->fill};
    int64_t bad = run_job(&job, threads_for(call, threads));
    for (int64_t i = 0; bad && i < call->n; i++)
        if (call->chunks[i].status != OK) return call->chunks[i].status;
    for (int i = 0; i < call->file_count; i++)
        if (!is_unchanged(call->files[i], &call->before[i])) return OTHER_VERSION;
    return OK;
}

/* Read selected elements of an array whose shards' indices and versions are known, but not its first `done` chunks, in the order in which
   the calls for one selection read them. Return how many chunks were read, or a negative status: then elements in the caller's array may
   have any value. What was read was of these versions. `strides`: of the caller's array, instead of those of params. `counted`: the chunks
   that are stored, and their bytes, are added; and whether there are more chunks to be read. */
EXPORT int64_t shardstore_read_selection(const Params *params, const int64_t *strides, const Along *along, const Shard *shards,
                                         int64_t shard_count, const char *paths, int64_t paths_nbytes, const char *inside,
                                         const uint8_t *fill, int64_t done, uint8_t *out, int64_t out_nbytes, int32_t threads,
                                         int64_t *counted) {
    Params own = *params;
    if (own.ndim < 0 || own.ndim > MAX_DIMENSIONS) return -BAD_ARGUMENT;
    memcpy(own.strides, strides, own.ndim * sizeof *strides);
    Call call = {.params = &own, .along = along, .shards = shards, .shard_count = shard_count, .paths = paths,
                 .paths_nbytes = paths_nbytes, .inside = inside, .fill = fill};
    if (!are_valid(&own) || !are_valid_along(&call) || threads < 1 || paths_nbytes < 1 || paths[paths_nbytes - 1]) return -BAD_ARGUMENT;
    call.chunks = malloc((size_t)call.most * sizeof *call.chunks);
    call.selections = malloc((size_t)call.most * 3 * (own.ndim + 1) * sizeof *call.selections);
    int status = call.chunks && call.selections ? gather_chunks(&call, done) : NO_MEMORY;
    if (status == OK && call.n) status = read_gathered(&call, out, out_nbytes, threads);
    for (int i = 0; i < call.file_count; i++) (void)close(call.files[i]);
    free(call.chunks);
    free(call.selections);
    if (status != OK) return -status;
    counted[0] += call.stored;
    counted[1] += call.stored_nbytes;
    counted[2] = call.has_more;
    return call.n;
}

/* ------------------------------------------------------------------------------------------------ encoding */

typedef struct {
    const Params *params;
    const uint8_t *source;
    int64_t source_nbytes;
    const int64_t *at;                                      /* of each chunk's first element in the source, in bytes */
    int64_t n;
    const uint8_t *fill;                                    /* an element, or NULL */
    uint8_t *arena;                                         /* slots for n chunks */
    int64_t slot_nbytes;
    int64_t *sizes;
    atomic_llong next;
} EncodeJob;

static int equals_fill(const Params *params, const uint8_t *chunk, const uint8_t *fill) {
    const size_t item = (size_t)params->itemsize, nbytes = (size_t)params->chunk_nbytes;
    return fill && !memcmp(chunk, fill, item) && !memcmp(chunk, chunk + item, nbytes - item); /* each element equals the one before */
}

/* Copy a whole chunk of the caller's array into one piece. */
static void gather(const Params *params, const uint8_t *from, uint8_t *to) {
    int64_t strides[MAX_DIMENSIONS], stride = params->itemsize;
    for (int d = params->ndim - 1; d >= 0; d--) {
        strides[d] = stride;
        stride *= params->chunk_shape[d];
    }
    copy_elements(params->ndim, params->chunk_shape, params->itemsize, to, strides, from, params->strides);
}

static int is_one_piece(const Params *params) {
    int64_t stride = params->itemsize;
    for (int d = params->ndim - 1; d >= 0; d--) {
        if (params->chunk_shape[d] > 1 && params->strides[d] != stride) return 0;
        stride *= params->chunk_shape[d];
    }
    return 1;
}

/* Return the number of encoded bytes, or NOT_ENCODED. What is not compressed lies in its place already. */
static int64_t encode(const Params *params, void *zstd, const uint8_t *from, uint8_t *to, int64_t room) {
    const Functions *functions = params->functions;
    const size_t nbytes = (size_t)params->chunk_nbytes;
    int64_t encoded = 0;
    switch (params->codec) {
    case NONE: encoded = params->chunk_nbytes; break;
    case ZSTD: {
        size_t result = functions->zstd_encode(zstd, to, (size_t)room, from, nbytes);
        if (!functions->zstd_is_error(result)) encoded = (int64_t)result;
        break;
    }
    case BLOSC:
        if (params->chunk_nbytes > INT32_MAX - BLOSC_MAX_OVERHEAD || params->typesize < 1 || params->blocksize < 0) break;
        /* With more room than numcodecs gives, it would store chunks longer than they are instead of copying them. */
        encoded = functions->blosc_encode(params->level, params->shuffle, (size_t)params->typesize, nbytes, from, to,
                                          nbytes + BLOSC_MAX_OVERHEAD, params->compressor, (size_t)params->blocksize, 1);
        break;
    }
    if (encoded < 1) return NOT_ENCODED;
    if (params->has_crc) {
        uint32_t crc = functions->crc32c(0, to, (size_t)encoded);
        memcpy(to + encoded, &crc, CRC_NBYTES);
        encoded += CRC_NBYTES;
    }
    return encoded;
}

static void *encode_work(void *argument) {
    EncodeJob *job = argument;
    const Params *params = job->params;
    const int is_plain = params->codec == NONE, has_to_gather = is_plain || !is_one_piece(params);
    Scratch *scratch = take_scratch();
    int is_able = scratch && (params->codec != ZSTD || has_zstd_encoder(scratch, params));
    if (is_able && has_to_gather && !is_plain) is_able = reserve(&scratch->decoded, &scratch->decoded_nbytes, params->chunk_nbytes);
    for (int64_t i; is_able && (i = atomic_fetch_add(&job->next, 1)) < job->n;) {
        const int64_t at = job->at[i];
        if (!lie_within(params, at, params->chunk_shape, job->source_nbytes)) continue;
        const uint8_t *chunk = job->source + at;
        uint8_t *slot = job->arena + i * job->slot_nbytes;
        if (has_to_gather) {
            uint8_t *gathered = is_plain ? slot : scratch->decoded;
            gather(params, chunk, gathered);
            chunk = gathered;
        }
        const int is_fill = equals_fill(params, chunk, job->fill);
        job->sizes[i] = is_fill ? EQUALS_FILL : encode(params, scratch->zstd_encoder, chunk, slot, job->slot_nbytes - CRC_NBYTES);
    }
    if (scratch && params->chunk_nbytes > KEPT_NBYTES) release_zstd_encoder(scratch); /* it has as much memory */
    if (scratch) give_back(scratch);
    return NULL;
}

/* Return how many bytes a chunk of any content needs, encoded; -1 if that is not known. */
EXPORT int64_t shardstore_encoded_bound(const Params *params) {
    if (!are_valid(params)) return -1;
    int64_t nbytes = params->chunk_nbytes + BLOSC_MAX_OVERHEAD;
    if (params->codec == ZSTD) {
        size_t bound = params->functions->zstd_bound((size_t)params->chunk_nbytes);
        if (bound > INT64_MAX / 2) return -1;               /* an error */
        nbytes = (int64_t)bound;
    }
    return (nbytes + CRC_NBYTES + 63) & ~INT64_C(63);       /* slots begin at lines of the processor's cache */
}

/* Encode whole chunks, each into its slot. `sizes`: the encoded bytes of each, EQUALS_FILL or NOT_ENCODED. Return how many are not
   encoded. */
EXPORT int64_t shardstore_encode(const Params *params, const uint8_t *source, int64_t source_nbytes, const int64_t *at, int64_t n,
                                 const uint8_t *fill, uint8_t *arena, int64_t arena_nbytes, int64_t *sizes, int32_t threads) {
    int64_t bad = 0;
    for (int64_t i = 0; i < n; i++) sizes[i] = NOT_ENCODED;
    const int64_t slot_nbytes = shardstore_encoded_bound(params);
    if (n < 1 || slot_nbytes < 0 || slot_nbytes > arena_nbytes / n || threads < 1) return n;
    EncodeJob job = {.params = params, .source = source, .source_nbytes = source_nbytes, .at = at, .n = n, .fill = fill,
                     .arena = arena, .slot_nbytes = slot_nbytes, .sizes = sizes};
    run_in_threads(encode_work, &job, threads < n ? threads : n);
    for (int64_t i = 0; i < n; i++) bad += sizes[i] == NOT_ENCODED;
    return bad;
}

/* Write `n` pieces, `sizes` bytes of each, one behind the other where the file is; those of no bytes are passed over. Return 0, or the
   system's error. */
static int write_pieces(int file, uint8_t *pieces, int64_t stride, const int64_t *sizes, int64_t n) {
    for (int64_t i = 0; i < n;) {
        struct iovec some[MOST_PIECES];
        int count = 0, first = 0;
        for (; i < n && count < MOST_PIECES; i++) {
            if (sizes[i] > 0) some[count++] = (struct iovec){pieces + i * stride, (size_t)sizes[i]};
        }
        while (first < count) {
            ssize_t done = writev(file, some + first, count - first);
            if (done < 0 && errno != EINTR) return errno;
            for (; done > 0 && first < count && (size_t)done >= some[first].iov_len; first++) done -= (ssize_t)some[first].iov_len;
            if (done > 0) {
                some[first].iov_base = (uint8_t *)some[first].iov_base + done;
                some[first].iov_len -= (size_t)done;
            }
        }
    }
    return 0;
}

/* Encode whole chunks, and write each behind the one before, where the file is. `sizes` as of shardstore_encode. Return 0; how many are
   not encoded, where that ended it; or the system's error, negative. A few chunks are encoded and written at a time, so they are still in
   the processor's cache when the system copies them. */
EXPORT int64_t shardstore_encode_to_file(const Params *params, const uint8_t *source, int64_t source_nbytes, const int64_t *at, int64_t n,
                                         const uint8_t *fill, int32_t file, int64_t *sizes, int32_t threads) {
    for (int64_t i = 0; i < n; i++) sizes[i] = NOT_ENCODED;
    const int64_t slot_nbytes = shardstore_encoded_bound(params);
    if (n < 1 || slot_nbytes < 0 || threads < 1) return n;
    if (threads > MAX_THREADS) threads = MAX_THREADS;
    int64_t at_once = KEPT_NBYTES / slot_nbytes, bad = 0;
    if (at_once < threads) at_once = threads;
    if (at_once > n) at_once = n;
    Scratch *scratch = at_once > INT64_MAX / slot_nbytes ? NULL : take_scratch();
    if (!scratch) return n;
    if (!reserve(&scratch->encoded, &scratch->encoded_nbytes, at_once * slot_nbytes)) bad = n;
    for (int64_t start = 0; start < n && !bad; start += at_once) {
        const int64_t count = n - start < at_once ? n - start : at_once;
        bad = shardstore_encode(params, source, source_nbytes, at + start, count, fill, scratch->encoded, at_once * slot_nbytes,
                                sizes + start, threads);
        if (!bad) bad = -write_pieces(file, scratch->encoded, slot_nbytes, sizes + start, count);
    }
    give_back(scratch);
    return bad;
}

/* ------------------------------------------------------------------------------------------------ what Python compares */

EXPORT int32_t shardstore_kernel_abi(void) { return is_ready ? ABI : -1; }
EXPORT int64_t shardstore_params_nbytes(void) { return sizeof(Params) + sizeof(Along) + sizeof(Shard); }
