"""C++ text for the ``cpu`` target: what reductions along contiguous rows accumulate into.

Every accumulator takes values with ``add`` (a float, or a vector of one of ``K_CHAINS`` independent chains) and parts
of the same row with ``merge``, and answers with ``value``. Sums are finished in float64: a float32 chain is at most
``K_PIECE / (SIMD * K_CHAINS)`` additions long.
"""

from __future__ import annotations

PART = """
struct Part { double value; long long index; };  // what one part of a row has found
"""

SCALAR = {
    "Sum": """
struct Sum {
    double total = 0;
    void add(float v, long long, int) { total += v; }
    void settle() {}
    Part part() const { return {total, 0}; }
    void merge(Part other) { total += other.value; }
    float value() const { return (float)total; }
};
""",
    "WideSum": """
struct WideSum {
    double total = 0;
    void add(float v, long long, int) { total += v; }
    void add_square(float v, long long, int) { total += (double)v * v; }
    void settle() {}
    Part part() const { return {total, 0}; }
    void merge(Part other) { total += other.value; }
    double value() const { return total; }
};
""",
    "Peak": """
struct Peak {
    float top = -3.402823466e38f;  // finite, so that exp(x - top) is never exp(inf - inf) for an empty part
    void add(float v, long long, int) { top = v > top ? v : top; }
    void settle() {}
    Part part() const { return {top, 0}; }
    void merge(Part other) { add((float)other.value, 0, 0); }
    float value() const { return top; }
};
""",
    "Extreme": """
struct $NAME {
    float best = $START;
    long long at = -1;
    void add(float v, long long i, int) {
        if (at < 0 || v $COMPARE best || (v != v && best == best)) { best = v; at = i; }
    }
    void settle() {}
    Part part() const { return {best, at}; }
    void merge(Part other) { if (other.index >= 0) add((float)other.value, other.index, 0); }
    $KIND value() const { return $RESULT; }
};
""",
}

VECTOR = {
    "Sum": """
struct Sum {
    vf lanes[K_CHAINS] = {};
    float rest = 0;
    double total = 0;
    void add(vf v, long long, int chain) { lanes[chain] += v; }
    void add(float v, long long, int) { rest += v; }
    void settle() {
        vf sum = lanes[0];
        for (int chain = 1; chain < K_CHAINS; ++chain) sum += lanes[chain];
        for (int chain = 0; chain < K_CHAINS; ++chain) lanes[chain] = vf{};
        float words[SIMD];
        store(words, sum);
        for (int half = SIMD / 2; half > 0; half /= 2)
            for (int lane = 0; lane < half; ++lane) words[lane] += words[lane + half];
        total += (double)words[0] + rest;
        rest = 0;
    }
    Part part() { settle(); return {total, 0}; }
    void merge(Part other) { total += other.value; }
    float value() { settle(); return (float)total; }
};
""",
    "WideSum": """
struct WideSum {  // float64 lanes: squares of values far from zero do not cancel
    typedef double vd __attribute__((vector_size(8 * SIMD)));
    vd lanes[K_CHAINS] = {};
    double total = 0;
    void add(vf v, long long, int chain) { lanes[chain] += __builtin_convertvector(v, vd); }
    void add(float v, long long, int) { total += v; }
    void add_square(vf v, long long, int chain) {
        const vd wide = __builtin_convertvector(v, vd);
        lanes[chain] += wide * wide;
    }
    void add_square(float v, long long, int) { total += (double)v * v; }
    void settle() {
        for (int chain = 0; chain < K_CHAINS; ++chain) {
            for (int lane = 0; lane < SIMD; ++lane) total += lanes[chain][lane];
            lanes[chain] = vd{};
        }
    }
    Part part() { settle(); return {total, 0}; }
    void merge(Part other) { total += other.value; }
    double value() { settle(); return total; }
};
""",
    "Peak": """
struct Peak {
    vf lanes[K_CHAINS];
    float top = -3.402823466e38f;  // finite, so that exp(x - top) is never exp(inf - inf) for an empty part
    Peak() { for (int chain = 0; chain < K_CHAINS; ++chain) lanes[chain] = splat(top); }
    void add(vf v, long long, int chain) { lanes[chain] = v > lanes[chain] ? v : lanes[chain]; }
    void add(float v, long long, int) { top = v > top ? v : top; }
    void settle() {
        vf best = lanes[0];
        for (int chain = 1; chain < K_CHAINS; ++chain) best = lanes[chain] > best ? lanes[chain] : best;
        float words[SIMD];
        store(words, best);
        for (int half = SIMD / 2; half > 0; half /= 2)
            for (int lane = 0; lane < half; ++lane)
                words[lane] = words[lane + half] > words[lane] ? words[lane + half] : words[lane];
        add(words[0], 0, 0);
    }
    Part part() { settle(); return {top, 0}; }
    void merge(Part other) { add((float)other.value, 0, 0); }
    float value() { settle(); return top; }
};
""",
    "Extreme": """
struct $NAME {  // a NaN wins over every number, the first of equals over the later ones
    vf best_lanes[K_CHAINS];
    vi at_lanes[K_CHAINS];
    float best = $START;
    long long at = -1;
    $NAME() {
        for (int chain = 0; chain < K_CHAINS; ++chain) {
            best_lanes[chain] = splat($START);
            at_lanes[chain] = vi{} - 1;
        }
    }
    void add(vf v, long long i, int chain) {
        const vf old = best_lanes[chain];
        const vi take = (v $COMPARE old) | ((v != v) & (old == old)) | (at_lanes[chain] < 0);
        best_lanes[chain] = take ? v : old;
        at_lanes[chain] = take ? vi{} + (int)i : at_lanes[chain];
    }
    void add(float v, long long i, int) {
        const bool earlier = v == best && i < at;
        if (at < 0 || v $COMPARE best || (v != v && (best == best || i < at)) || earlier) { best = v; at = i; }
    }
    void settle() {
        for (int chain = 0; chain < K_CHAINS; ++chain)
            for (int lane = 0; lane < SIMD; ++lane) {
                const long long where = at_lanes[chain][lane];
                if (where >= 0) add(best_lanes[chain][lane], where + lane, 0);
                at_lanes[chain][lane] = -1;
            }
    }
    Part part() { settle(); return {best, at}; }
    void merge(Part other) { if (other.index >= 0) add((float)other.value, other.index, 0); }
    $KIND value() { settle(); return $RESULT; }
};
""",
}

LANES = {
    "Sum": """
template <class T> struct LaneSum {
    T part = {}, total = {};
    void add(T v, long long) { part += v; }
    void settle() { total += part; part = T{}; }  // called every few dozen steps, to keep chains of additions short
    T value() { settle(); return total; }
};
""",
    "Peak": """
template <class T> struct LanePeak {
    T top = T{} - 3.402823466e38f;
    void add(T v, long long) { top = v > top ? v : top; }
    void settle() {}
    T value() { return top; }
};
""",
    "Extreme": """
template <class T> struct Lane$NAME {
    T best = T{} + $START;
    typename Index<T>::type at = typename Index<T>::type{} - 1;
    void add(T v, long long l) {
        const auto take = (v $COMPARE best) | ((v != v) & (best == best)) | (at < 0);
        best = take ? v : best;
        at = take ? typename Index<T>::type{} + (int)l : at;
    }
    void settle() {}
    $LANE_KIND value() { return $RESULT; }
};
""",
}

INDEX_SCALAR = """
template <class T> struct Index { typedef int type; };
static inline void store(long long* p, int value) { *p = value; }
"""

INDEX_VECTOR = (
    INDEX_SCALAR
    + """
template <> struct Index<vf> { typedef vi type; };
static inline void store(long long* p, vi value) { for (int lane = 0; lane < SIMD; ++lane) p[lane] = value[lane]; }
"""
)

EXTREMES = {
    "Largest": {"START": "-FN_INF", "COMPARE": ">", "KIND": "float", "LANE_KIND": "T", "RESULT": "best"},
    "Smallest": {"START": "FN_INF", "COMPARE": "<", "KIND": "float", "LANE_KIND": "T", "RESULT": "best"},
    "ArgLargest": {
        "START": "-FN_INF",
        "COMPARE": ">",
        "KIND": "long long",
        "LANE_KIND": "typename Index<T>::type",
        "RESULT": "at",
    },
    "ArgSmallest": {
        "START": "FN_INF",
        "COMPARE": "<",
        "KIND": "long long",
        "LANE_KIND": "typename Index<T>::type",
        "RESULT": "at",
    },
}
