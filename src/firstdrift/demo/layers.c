/* What each kind of layer computes, forward and backward, for one sample: channel after channel, time runs fastest.
 *
 * A backward is handed the layer's input and dL/d its output (l->gradient). It adds to the gradients of the
 * parameters, and sets dL/d its input. */
#include "kws.h"

#include <math.h>
#include <string.h>

void average_pool_forward(layer *l, const float *x)
{
    const int divisor = bug == AVGPOOL_DIVISOR ? l->size + 1 : l->size;
    for (int t = 0; t < l->length; t++) {
        float sum = 0;
        for (int k = 0; k < l->size; k++)
            sum += x[t * l->size + k];
        l->out[t] = sum / (float)divisor;
    }
}

/* The same length goes out as comes in: zeros stand before the beginning and after the end. */
static int padding(const layer *l) { return bug == CONV_PAD ? l->size / 2 - 1 : l->size / 2; }

void conv_forward(layer *l, const float *x)
{
    for (int o = 0; o < l->channels; o++)
        for (int t = 0; t < l->length; t++) {
            float sum = l->bias.value[o];
            for (int i = 0; i < l->inputs; i++)
                for (int k = 0; k < l->size; k++) {
                    const int at = t + k - padding(l), tap = bug == CONV_FLIP ? l->size - 1 - k : k;
                    if (at >= 0 && at < l->in_length)
                        sum += l->weight.value[(o * l->inputs + i) * l->size + tap] * x[i * l->in_length + at];
                }
            l->out[o * l->length + t] = sum;
        }
}

void conv_backward(layer *l, const float *x, float *to_x)
{
    const int border = bug == CONV_GRAD_BORDER, off = bug == CONV_GRAD_WEIGHT;
    memset(to_x, 0, sizeof *to_x * (size_t)(l->inputs * l->in_length));
    for (int o = 0; o < l->channels; o++) {
        if (bug == BIAS_GRAD)
            l->bias.gradient[o] = 0;
        for (int t = 0; t < l->length; t++) {
            const float gradient = l->gradient[o * l->length + t];
            l->bias.gradient[o] += gradient;
            for (int i = 0; i < l->inputs; i++)
                for (int k = 0; k < l->size; k++) {
                    const int at = t + k - padding(l), tap = bug == CONV_FLIP ? l->size - 1 - k : k;
                    const int w = (o * l->inputs + i) * l->size + tap;
                    if (at >= off && at < l->in_length)
                        l->weight.gradient[w] += gradient * x[i * l->in_length + at - off];
                    if (at >= border && at < l->in_length - border)
                        to_x[i * l->in_length + at] += gradient * l->weight.value[w];
                }
        }
    }
}

/* Normalizes over channels and time together, and has a weight and a bias for every element. */
void norm_forward(layer *l, const float *x)
{
    const float epsilon = bug == LN_EPS ? 1e-3f : 1e-5f;
    float sum = 0, squares = 0;
    for (int i = 0; i < l->count; i++)
        sum += x[i];
    l->mean = sum / (float)l->count;
    for (int i = 0; i < l->count; i++)
        squares += (x[i] - l->mean) * (x[i] - l->mean);
    const float variance = squares / (float)(bug == LN_VARIANCE ? l->count - 1 : l->count);
    l->scale = 1.0f / sqrtf(variance + epsilon);
    for (int i = 0; i < l->count; i++)
        l->out[i] = (x[i] - l->mean) * l->scale * l->weight.value[i] + l->bias.value[i];
}

void norm_backward(layer *l, const float *x, float *to_x)
{
    float sum = 0, along = 0;
    for (int i = 0; i < l->count; i++) {
        const float normal = (x[i] - l->mean) * l->scale;
        l->weight.gradient[i] += l->gradient[i] * (bug == GAMMA_GRAD ? x[i] : normal);
        l->bias.gradient[i] += l->gradient[i];
        to_x[i] = bug == LN_GRAD_GAMMA ? l->gradient[i] : l->gradient[i] * l->weight.value[i];
        sum += to_x[i];
        along += to_x[i] * normal;
    }
    const float centre = bug == LN_GRAD_MEAN ? 0 : sum / (float)l->count, slope = along / (float)l->count;
    for (int i = 0; i < l->count; i++)
        to_x[i] = l->scale * (to_x[i] - centre - (x[i] - l->mean) * l->scale * slope);
}

void relu_forward(layer *l, const float *x)
{
    for (int i = 0; i < l->count; i++)
        l->out[i] = x[i] > 0 ? x[i] : 0;
}

void relu_backward(layer *l, const float *x, float *to_x)
{
    (void)x;
    for (int i = 0; i < l->count; i++) {
        const int open = bug == RELU_MASK ? l->out[i] >= 0 : l->out[i] > 0;
        to_x[i] = open ? l->gradient[i] : 0;
    }
}

/* Windows do not overlap; what is left at the end and fills none is dropped. Of equal maxima the first counts. */
void max_pool_forward(layer *l, const float *x)
{
    const int size = bug == MAXPOOL_WINDOW ? l->size - 1 : l->size;
    for (int c = 0; c < l->channels; c++)
        for (int t = 0; t < l->length; t++) {
            const int first = c * l->in_length + t * l->size;
            int best = first;
            for (int at = first + 1; at < first + size; at++)
                if (x[at] > x[best] || (bug == MAXPOOL_TIE && x[at] == x[best]))
                    best = at;
            l->out[c * l->length + t] = x[best];
            if (!(bug == STALE_BUFFER && l->calls))
                l->chosen[c * l->length + t] = bug == MAXPOOL_GRAD_FIRST ? first : best;
        }
    l->calls++;
}

void max_pool_backward(layer *l, const float *x, float *to_x)
{
    (void)x;
    memset(to_x, 0, sizeof *to_x * (size_t)(l->inputs * l->in_length));
    for (int i = 0; i < l->count; i++)
        to_x[l->chosen[i]] += l->gradient[i];
}

/* The adaptive average pool to length 1: the mean of each channel over time. */
void mean_forward(layer *l, const float *x)
{
    const int divisor = bug == GAP_DIVISOR ? l->in_length + 1 : l->in_length;
    for (int c = 0; c < l->channels; c++) {
        float sum = 0;
        for (int t = 0; t < l->in_length; t++)
            sum += x[c * l->in_length + t];
        l->out[c] = sum / (float)divisor;
    }
}

void mean_backward(layer *l, const float *x, float *to_x)
{
    (void)x;
    for (int i = 0; i < l->channels * l->in_length; i++)
        to_x[i] = l->gradient[i / l->in_length] / (float)(bug == GAP_GRAD ? 1 : l->in_length);
}

void flatten_forward(layer *l, const float *x) { memcpy(l->out, x, sizeof *x * (size_t)l->count); }

void flatten_backward(layer *l, const float *x, float *to_x)
{
    (void)x;
    memcpy(to_x, l->gradient, sizeof *to_x * (size_t)l->count);
}

void linear_forward(layer *l, const float *x)
{
    for (int o = 0; o < l->channels; o++) {
        float sum = l->bias.value[o];
        for (int i = 0; i < l->inputs; i++)
            sum += l->weight.value[o * l->inputs + i] * x[i];
        l->out[o] = sum;
    }
}

void linear_backward(layer *l, const float *x, float *to_x)
{
    memset(to_x, 0, sizeof *to_x * (size_t)l->inputs);
    for (int o = 0; o < l->channels; o++) {
        l->bias.gradient[o] += l->gradient[o];
        for (int i = 0; i < l->inputs; i++) {
            const int stored = bug == LINEAR_GRAD ? i * l->channels + o : o * l->inputs + i;
            l->weight.gradient[stored] += l->gradient[o] * x[i];
            to_x[i] += l->gradient[o] * l->weight.value[o * l->inputs + i];
        }
    }
}

void softmax_forward(layer *l, const float *x)
{
    float most = x[0], sum = 0;
    for (int i = 1; i < l->count; i++)
        most = x[i] > most ? x[i] : most;
    for (int i = 0; i < l->count; i++)
        sum += l->out[i] = bug == SOFTMAX_BASE ? exp2f(x[i] - most) : expf(x[i] - most);
    for (int i = 0; i < l->count; i++)
        l->out[i] /= sum;
}
